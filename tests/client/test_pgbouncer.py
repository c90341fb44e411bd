"""Behind PgBouncer in transaction mode everything works, without sessions, prepared statements or LISTEN."""

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from skep import AsyncSkep, Message, NewMessage, Skep
from skep.errors import InvalidArgument, StaleLease
from tests.client.pooler import pgbouncer
from tests.engine.threads import at_once, until
from tests.engine.verbs import broken

OTHERS = "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def pooler(postgres_url: str, template: str) -> Generator[str]:
    with pgbouncer(postgres_url) as address:
        yield address


@pytest.fixture
def url(pooler: str, database_url: str) -> str:
    """The database of the test through the pooler, as a user with only the needed rights."""
    user = conninfo_to_dict(pooler)["user"]
    with psycopg.connect(database_url) as admin:
        admin.execute(f"CREATE TABLE notes (n integer); GRANT ALL ON notes TO {user}".encode())
    return make_conninfo(pooler, dbname=conninfo_to_dict(database_url)["dbname"])


@pytest.fixture
def mq(url: str) -> Generator[Skep]:
    with Skep(url, poll_interval=0.2) as client:
        yield client


def test_the_pooler_is_detected(url: str, database_url: str) -> None:
    """Sessions are shared with it, and not shared without it."""
    with Skep(url) as pooled, Skep(database_url) as direct:
        assert not pooled._database.direct
        assert direct._database.direct


async def test_the_asynchronous_client_detects_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It does not LISTEN, and logs why consumers poll."""
    with caplog.at_level(logging.INFO, "skep"):
        async with AsyncSkep(url, poll_interval=0.05) as mq:
            assert not mq._database.direct
            assert not await mq.queue("q").pop(wait=0.1)
    assert [record.message for record in caplog.records if "pooler" in record.message] != []


def test_sessions_are_shared_here(mq: Skep, database_url: str) -> None:
    """Twenty threads use at most two sessions of the server: the other tests depend on it."""
    at_once(*[partial(push_many_times, mq, str(n)) for n in range(20)])
    with psycopg.connect(database_url) as observer:
        assert 1 <= len(observer.execute(OTHERS).fetchall()) <= 2
        assert "LISTEN" not in str(observer.execute(OTHERS).fetchall())


def push_many_times(mq: Skep, partition: str) -> None:
    for n in range(20):  # more often than psycopg prepares a statement after
        assert mq.queue("q").push(n, partition=partition).offset == n


def test_push_pop_and_every_ack(mq: Skep) -> None:
    queue = mq.queue("q")
    queue.configure(retry_delay=0)
    queue.push_many([NewMessage(n, "partition", headers={"n": n}) for n in range(10)])
    batch = queue.pop(group="g", batch=10)
    assert [message.payload for message in batch] == list(range(10))
    batch.extend(60)
    batch.ack(batch[0])
    batch.dead_letter(batch[1], "no good")
    batch.release()
    with pytest.raises(StaleLease):
        batch.ack()
    with queue.pop(group="g", batch=10) as again:
        assert [message.payload for message in again] == list(range(2, 10))
    assert [row.lag for row in queue.lag("g")] == [0]
    assert [letter.error for letter in mq.dead_letters("q")] == ["no good"]
    with pytest.raises(InvalidArgument):
        queue.push(1, partition="x" * 300)


@pytest.mark.parametrize("other_client", [False, True], ids=["same client", "another client"])
def test_a_waiting_pop(mq: Skep, url: str, *, other_client: bool) -> None:
    """A push of the same client wakes it at once; a push of another one is found by polling."""
    came: list[Message] = []
    waiting = threading.Event()

    def wait() -> None:
        waiting.set()
        came.extend(mq.queue("q").pop(wait=20))

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    if other_client:
        with Skep(url) as another:
            another.queue("q").push("hello")
    else:
        mq.queue("q").push("hello")
    thread.join()
    assert [message.payload for message in came] == ["hello"]


def test_consume(mq: Skep) -> None:
    """Several partitions, each in order."""
    mq.queue("q").push_many([NewMessage(n, str(n % 5)) for n in range(500)])
    came: dict[str, list[int]] = {}
    for batch in mq.queue("q").consume(group="g", batch=20, idle_timeout=0.01):
        came.setdefault(batch[0].partition, []).extend(message.payload for message in batch)
    assert came == {str(partition): list(range(partition, 500, 5)) for partition in range(5)}
    assert sum(row.lag for row in mq.queue("q").lag("g")) == 0


def test_handlers(mq: Skep, database_url: str) -> None:
    """Handlers run in threads and fail on one message."""
    mq.queue("q").configure(retry_limit=1, retry_delay=0.01)
    came: list[int] = []

    @mq.consumer("q", group="g", batch=1, concurrency=4)
    def handle(message: Message) -> None:
        came.append(message.payload)
        if message.payload == 13:
            raise ValueError("unlucky")

    running = threading.Thread(target=mq.run)
    running.start()
    mq.queue("q").push_many([NewMessage(n, str(n % 7)) for n in range(100)])
    until(lambda: drained(mq, 7), "the handlers to be done")
    mq.stop()
    running.join()
    assert sorted(came) == sorted([*range(100), 13])
    assert [letter.error for letter in mq.dead_letters("q")] == ["ValueError: unlucky"]
    with psycopg.connect(database_url) as observer:
        assert broken(observer) == {}


def drained(mq: Skep, partitions: int) -> bool:
    lags = mq.queue("q").lag("g")
    return len(lags) == partitions and not any(row.lag for row in lags)


def test_a_buffer(mq: Skep) -> None:
    with mq.queue("q").buffer(size=50, delay=0.01) as buffer:
        for n in range(1000):
            buffer.push(n)
    payloads = [message.payload for batch in mq.queue("q").consume(idle_timeout=0.01) for message in batch]
    assert payloads == list(range(1000))


def test_a_transaction(mq: Skep) -> None:
    """Pushes and acks in one transaction."""
    mq.queue("in").push("task")
    batch = mq.queue("in").pop()
    with mq.transaction() as transaction:
        transaction.ack(batch)
        transaction.push("out", "done")
    assert [message.payload for message in mq.queue("out").pop()] == ["done"]
    again = mq.transaction()
    again.push("out", "twice")
    again.ack(batch)
    with pytest.raises(StaleLease), again:
        pass
    assert not mq.queue("out").pop()


def test_the_outbox(mq: Skep, url: str) -> None:
    """Transactions of a caller through the pooler, with acks; many of them, because of prepared statements."""
    with psycopg.connect(url, prepare_threshold=None) as connection:
        for n in range(10):
            connection.execute("INSERT INTO notes VALUES (%s)", [n])
            mq.queue("q").push(n, connection=connection)
            connection.rollback() if n % 2 else connection.commit()
        batch = mq.queue("q").pop(batch=10)
        assert [message.payload for message in batch] == [0, 2, 4, 6, 8]
        assert connection.execute("SELECT n FROM notes ORDER BY n").fetchall() == [(n,) for n in (0, 2, 4, 6, 8)]
        batch.ack(connection=connection)
        connection.commit()
    assert [row.lag for row in mq.queue("q").lag("__QUEUE_MODE__")] == [0]


async def work(url: str, number: int, came: Callable[[Message], None]) -> None:
    """Push to one partition with a new client, and consume in a group with all others."""
    async with AsyncSkep(url, poll_interval=0.05) as mq:
        async with mq.queue("q").buffer(size=10) as buffer:
            for n in range(50):
                await buffer.push(n, partition=str(number))
        async for batch in mq.queue("q").consume(group="g", batch=10, idle_timeout=0.3):
            for message in batch:
                came(message)


async def test_several_clients_at_once(url: str, database_url: str) -> None:
    """Eight clients push and consume in one group: each message once, partitions in order."""
    came: list[Message] = []
    await asyncio.gather(*[work(url, n, came.append) for n in range(8)])
    by_partition = {str(n): [message.payload for message in came if message.partition == str(n)] for n in range(8)}
    assert by_partition == {str(n): list(range(50)) for n in range(8)}
    with psycopg.connect(database_url) as observer:
        assert broken(observer) == {}


def test_the_pooler_loses_its_server(mq: Skep, pooler: str, database_url: str) -> None:
    """Sessions that end while idle cause no error: PgBouncer opens others."""
    mq.queue("q").push("before")
    with psycopg.connect(database_url) as admin:
        for pid, _ in admin.execute(OTHERS).fetchall():
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
    database = str(conninfo_to_dict(database_url)["dbname"])
    with psycopg.connect(pooler, dbname="pgbouncer", autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
        until(lambda: database not in str(console.execute("SHOW SERVERS").fetchall()), "PgBouncer to notice")
    mq.queue("q").push("after")
    assert [message.payload for message in mq.queue("q").pop(batch=10)] == ["before", "after"]
