"""Many messages, and processes that are killed (section I)."""

import asyncio
import itertools
from collections.abc import Generator

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.upkeep import retain
from tests.client.verbs import drain, lag, offsets, take
from tests.engine.verbs import broken, pass_time
from tests.fanout.verbs import AT_ONCE, Q, by_partition, kept
from tests.faults.processes import Start, processes
from tests.faults.worker import BATCH

MANY = 100_000


@pytest.fixture(params=["async"])  # the load is the same for both faces
def face(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def start() -> Generator[Start]:
    with processes() as start_one:
        yield start_one


async def test_two_groups_on_one_key(clients, db: psycopg.Connection):
    """A hundred thousand messages in one partition, four producers, two groups of two consumers: both get all of them.

    Scenario 93.
    """
    producers = [clients() for _ in range(4)]
    numbers = itertools.count()
    stored: list[int] = []

    async def produce(mq: AsyncSkep) -> None:
        while (first := next(numbers) * 2500) < MANY:
            receipts = await mq.queue(Q).push_many([first + n for n in range(2500)])
            stored.extend(receipt.offset for receipt in receipts if receipt.offset is not None)

    async def consume(mq: AsyncSkep, group: str, came: list[tuple[int, int]]) -> None:
        while len(came) < MANY:
            batch = await mq.queue(Q).pop(group=group, batch=2500, wait=1)
            came += [(message.offset, message.payload) for message in batch]
            await batch.ack()

    sets: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    workers = [consume(clients(), group, came) for group, came in sets.items() for _ in range(2)]
    await asyncio.gather(*workers, *(produce(mq) for mq in producers))
    assert sorted(stored) == list(range(MANY))
    for came in sets.values():
        assert [offset for offset, _ in came] == list(range(MANY))  # one partition: in order, also across its consumers
        assert sorted(number for _, number in came) == list(range(MANY))
    assert broken(db) == {}


async def test_a_killed_member(mq: AsyncSkep, db: psycopg.Connection, start: Start, module_database_url: str):
    """Its partition moves when its lease expires, without a join or a leave.

    The others see no duplicates (scenario 96).
    """
    q = mq.queue(Q)
    await q.push_many([NewMessage(n, partition) for partition in ("a", "b", "c") for n in range(BATCH)])
    others = [await q.pop(group="g", batch=BATCH, partition=partition) for partition in ("a", "b")]
    victim = start("sync", "some", module_database_url, Q, "g", "5")
    assert [victim.read() for _ in range(6)][-1] == "pausing"
    victim.kill()
    for batch in others:
        await batch.ack()
    pass_time(db, 2)  # the lease of the killed one lasts a second
    came = await drain(q)
    assert by_partition(came) == {"c": list(range(5, BATCH))}
    assert {message.attempt for message in came} == {2}


async def test_a_consumer_killed_during_a_backfill(
    mq: AsyncSkep, db: psycopg.Connection, start: Start, module_database_url: str
):
    """The next start continues by itself, without a manual cancel; meanwhile the history is kept (scenario 100)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await q.push_many(range(3 * BATCH))
    await drain(q, "early")
    await mq.subscribe("late", Q)
    assert await take(q, "late", batch=BATCH) == list(range(BATCH))
    victim = start("async", "some", module_database_url, Q, "late", "7")
    assert [victim.read() for _ in range(8)][-1] == "pausing"
    victim.kill()
    pass_time(db, 2)
    await mq.expire_leases()
    assert await kept(mq) == list(range(BATCH + 7, 3 * BATCH))
    assert offsets(await drain(q, "late")) == list(range(BATCH + 7, 3 * BATCH))
    assert await lag(q, "late") == {"Default": 0}
    await retain(mq)
    assert (await q.status()).messages == 0
