"""A thousand long transactions publish through the outbox; none waits for another, and nothing is lost or doubled."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from itertools import pairwise

import psycopg
import pytest
from psycopg import AsyncConnection

from skep import AsyncSkep, Skep
from skep.client.sync.queue import Queue
from skep.message import Message, NewMessage
from tests.engine.verbs import broken

TRANSACTIONS = 1000
AT_ONCE = 150  # if the server has enough connections
SPARE = 20  # connections for the clients of Skep
PARTITIONS = [f"partition {n}" for n in range(7)]
# A transaction that waited for another would wait forever, because the same thread keeps both open.
IMPATIENT = "-c lock_timeout=5s"


@dataclass
class Producer:
    """A connection and its transaction: its published messages, and how many of them are still in a savepoint."""

    connection: psycopg.Connection
    number: int = 0
    published: list[tuple[str, list[int]]] = field(default_factory=list)

    def begin(self, number: int) -> None:
        self.number, self.published = number, []
        self.connection.execute("BEGIN")

    def publish(self, queue: Queue, partitions: list[str]) -> None:
        """Publish to these partitions in one call."""
        items = [(partition, [self.number, len(self.published) + n]) for n, partition in enumerate(partitions)]
        queue.push_many([NewMessage(payload, partition) for partition, payload in items], connection=self.connection)
        self.published += items

    def publish_in_vain(self, queue: Queue, partition: str) -> None:
        """Publish in a savepoint that is rolled back, while the transaction continues."""
        with self.connection.transaction(force_rollback=True):
            queue.push("never", partition=partition, connection=self.connection)


@pytest.fixture
def room(database_url: str) -> int:
    """Return how many transactions may be open at once."""
    free = """
        SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
               - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
    """
    with psycopg.connect(database_url) as connection:
        ((connections,),) = connection.execute(free).fetchall()
    room = min(AT_ONCE, connections - SPARE)
    assert room > 50, "the server has too few connections for this test; raise its max_connections"
    return room


@pytest.fixture
def producers(database_url: str, room: int) -> Generator[list[Producer]]:
    with ExitStack() as stack:
        connections = [
            stack.enter_context(psycopg.connect(database_url, autocommit=True, options=IMPATIENT)) for _ in range(room)
        ]
        yield [Producer(connection) for connection in connections]


def take_everything(queue: Queue, group: str) -> dict[str, list[Message]]:
    """Consume until the queue is empty; return the messages of each partition."""
    came: dict[str, list[Message]] = defaultdict(list)
    for batch in queue.consume(group=group, batch=50, idle_timeout=0.01):
        came[batch[0].partition] += batch
    return came


def test_a_thousand_long_transactions_in_any_order(database_url: str, producers: list[Producer]) -> None:
    """Up to 150 are open at once. Committed messages are delivered once, in the order of the commits."""
    dice = random.Random(2)
    expected: dict[str, list] = defaultdict(list)
    open_now: list[Producer] = []
    most_expected, most, started, rolled_back = len(producers), 0, 0, 0
    with Skep(database_url) as mq, psycopg.connect(database_url, autocommit=True) as observer:
        queue = mq.queue("orders")
        while open_now or started < TRANSACTIONS:
            if producers and started < TRANSACTIONS and (not open_now or dice.random() < 0.6):
                open_now.append(producers.pop(dice.randrange(len(producers))))
                open_now[-1].begin(started)
                open_now[-1].publish(queue, [dice.choice(PARTITIONS)])
                started += 1
                continue
            most = max(most, len(open_now))
            producer = open_now.pop(dice.randrange(len(open_now)))
            producer.publish_in_vain(queue, dice.choice(PARTITIONS))
            producer.publish(queue, dice.choices(PARTITIONS, k=dice.randrange(3)))
            if dice.random() < 0.3:
                producer.connection.execute("ROLLBACK")
                rolled_back += 1
            else:
                producer.connection.execute("COMMIT")
                for partition, payload in producer.published:
                    expected[partition].append(payload)
            producers.append(producer)
        assert most == most_expected
        assert 200 < rolled_back < 400
        came = take_everything(queue, "readers")
        assert {
            partition: [message.payload for message in messages] for partition, messages in came.items()
        } == expected
        for messages in came.values():
            assert [message.offset for message in messages] == list(range(len(messages)))
        assert broken(observer) == {}


def test_a_push_returns_while_others_stay_open(database_url: str, producers: list[Producer]) -> None:
    """150 open transactions have messages for one partition; no session waits for a lock."""
    with Skep(database_url) as mq, psycopg.connect(database_url, autocommit=True) as observer:
        queue = mq.queue("orders")
        for number, producer in enumerate(producers):
            producer.begin(number)
            producer.publish(queue, ["one"])
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        assert observer.execute(waiting).fetchall() == [(0,)]
        idle = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        assert observer.execute(idle).fetchall() == [(len(producers),)]
        assert queue.push("direct", partition="one").offset == 0  # a push without a transaction does not wait, either
        last = producers[-1].connection
        last.execute("COMMIT")
        assert [message.payload for message in queue.pop(batch=10)] == ["direct", [len(producers) - 1, 0]]
        for producer in producers[:-1]:
            producer.connection.execute("ROLLBACK")
        assert [(row.partition, row.last_offset) for row in queue.lag("__QUEUE_MODE__")] == [("one", 1)]


async def publish_at_once(
    mq: AsyncSkep, connection: AsyncConnection, number: int, everyone: asyncio.Barrier, dice: random.Random
) -> list[tuple[str, int, int]]:
    """Publish in one transaction, and end it when all others have published; return the committed messages."""
    partitions = dice.choices(PARTITIONS, k=1 + dice.randrange(4))
    queue = mq.queue("orders")
    await connection.execute("BEGIN")
    for n, partition in enumerate(partitions):
        await queue.push([number, n], partition=partition, connection=connection)
    await everyone.wait()
    committed = dice.random() < 0.7
    await connection.execute("COMMIT" if committed else "ROLLBACK")
    return [(partition, number, n) for n, partition in enumerate(partitions)] if committed else []


async def consume_all(mq: AsyncSkep, done: asyncio.Event) -> dict[str, list[Message]]:
    """Consume while the transactions commit, until all messages are consumed."""
    came: dict[str, list[Message]] = defaultdict(list)
    while not done.is_set() or sum([row.lag for row in await mq.queue("orders").lag("readers")]):
        async with await mq.queue("orders").pop(group="readers", batch=50, partitions=7, wait=0.05) as batch:
            for message in batch:
                came[message.partition].append(message)
    return came


async def test_a_thousand_transactions_commit_at_the_same_time(database_url: str, room: int) -> None:
    """They commit in waves of a hundred while a group consumes: each message once, partitions in order."""
    dice = random.Random(3)
    wave = min(100, room)
    done, everyone = asyncio.Event(), asyncio.Barrier(wave)
    async with AsyncExitStack() as stack:
        mq = await stack.enter_async_context(AsyncSkep(database_url, poll_interval=0.05))
        connections = [
            await stack.enter_async_context(
                await AsyncConnection.connect(database_url, autocommit=True, options=IMPATIENT)
            )
            for _ in range(wave)
        ]
        consumer = asyncio.create_task(consume_all(mq, done))
        expected: list[tuple[str, int, int]] = []
        for first in range(0, TRANSACTIONS, wave):
            works = [
                publish_at_once(mq, connection, first + n, everyone, dice) for n, connection in enumerate(connections)
            ]
            expected += [item for items in await asyncio.gather(*works) for item in items]
        done.set()
        came = await consumer
    delivered = Counter((partition, *message.payload) for partition, messages in came.items() for message in messages)
    assert delivered == Counter(expected)
    assert max(delivered.values()) == 1
    for messages in came.values():
        assert [message.offset for message in messages] == list(range(len(messages)))
        assert_transactions_are_whole([message.payload for message in messages])
    with psycopg.connect(database_url) as observer:
        assert broken(observer) == {}


def assert_transactions_are_whole(payloads: list[tuple[int, int]]) -> None:
    """Messages of one transaction in a partition are contiguous and in order."""
    changes = sum(first[0] != second[0] for first, second in pairwise(payloads))
    assert changes + 1 == len({number for number, _ in payloads})
    assert all(first[1] < second[1] for first, second in pairwise(payloads) if first[0] == second[0])
