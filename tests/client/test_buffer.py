"""Buffers accept messages at once and store them together, in order and once, even if the database fails meanwhile."""

import asyncio
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

from skep import AsyncSkep, SkepError
from skep.errors import InvalidArgument, MessagesRefused, PayloadTooLarge, PermissionDenied
from tests.client.verbs import drain, offsets, payloads, refused, take, until
from tests.engine.verbs import broken

FOREVER: Any = {"size": 10_000, "delay": 3600}  # stores nothing by itself


def stored(db: psycopg.Connection) -> list[Any]:
    query = 'SELECT payload FROM skep.messages ORDER BY partition_id, "offset"'
    return [payload for (payload,) in db.execute(query).fetchall()]


def pushes(db: psycopg.Connection) -> int:
    """Return the number of calls that stored the messages."""
    return db.execute("SELECT count(*) FROM skep.journal").fetchall()[0][0]


@asynccontextmanager
async def locked(db_url: str, queue: str = "orders") -> AsyncGenerator[None]:
    """Lock the partition of a queue, so that every push to it waits."""
    with psycopg.connect(db_url) as connection:
        partition = "SELECT FROM skep.partition_lookup JOIN skep.partitions p ON p.id = partition_id JOIN skep.queues q"
        connection.execute(sql.SQL(f"{partition} ON q.id = queue_id WHERE q.name = %s FOR UPDATE"), [queue])  # pyright: ignore[reportArgumentType]
        yield


async def test_a_push_is_accepted_at_once_and_stored_later(mq: AsyncSkep, db: psycopg.Connection):
    async with mq.queue("orders").buffer(**FOREVER) as buffer:
        for number in range(100):
            await buffer.push(number)
        assert stored(db) == []
    assert (stored(db), pushes(db)) == (list(range(100)), 1)


async def test_size_messages_are_stored_together(mq: AsyncSkep, db: psycopg.Connection):
    """`size` messages are stored as soon as they are there, and never more in one call."""
    async with mq.queue("orders").buffer(size=10, delay=3600) as buffer:
        for number in range(10):
            await buffer.push(number)
        await until(lambda: stored(db) == list(range(10)), "ten messages to be stored")
        assert pushes(db) == 1
        for number in range(35):
            await buffer.push(number)
    largest = "SELECT max(last_offsets[1] - first_offsets[1] + 1) FROM skep.journal"
    assert (len(stored(db)), db.execute(largest).fetchall()) == (45, [(10,)])


async def test_the_first_message_waits_no_longer_than_delay(mq: AsyncSkep, db: psycopg.Connection):
    """After `delay` seconds, however few there are."""
    async with mq.queue("orders").buffer(size=1000, delay=0.1) as buffer:
        for number in range(3):
            began = time.monotonic()
            await buffer.push(number)
            await until(lambda: len(stored(db)) == number + 1, "the message to be stored")  # noqa: B023
            assert time.monotonic() - began < 5


async def test_order_is_kept(mq: AsyncSkep):
    """Each message has a transaction id, so that a call without a response can be repeated."""
    q = mq.queue("orders")
    async with q.buffer(size=7, delay=0.001) as buffer:
        for number in range(500):
            await buffer.push(number)
    messages = await drain(q, batch=1000)
    assert (payloads(messages), offsets(messages)) == (list(range(500)), list(range(500)))
    assert len({message.transaction_id for message in messages} - {None}) == 500


async def test_many_producers_share_a_buffer(mq: AsyncSkep):
    """The messages of each producer are in order."""
    q = mq.queue("orders")
    async with q.buffer(size=5, delay=0.001) as buffer:

        async def produce(who: int) -> None:
            for number in range(50):
                await buffer.push([who, number])

        await asyncio.gather(*[produce(who) for who in range(6)])
    seen = payloads(await drain(q, batch=1000))
    for who in range(6):
        assert [number for writer, number in seen if writer == who] == list(range(50))


async def test_every_field_is_stored(clients: Callable[..., AsyncSkep]):
    mq = clients(producer="shop-1")
    async with mq.queue("orders").buffer() as buffer:
        await buffer.push(1, partition="eu", transaction_id="once", headers={"h": 1}, trace_id=str(TRACE))
        await buffer.push(2, partition="eu", transaction_id="once")
    (message,) = await mq.queue("orders").pop(batch=9)
    assert (message.payload, message.partition, message.transaction_id) == (1, "eu", "once")
    assert (message.headers, str(message.trace_id), message.producer) == ({"h": 1}, TRACE, "shop-1")


TRACE = "01234567-89ab-cdef-0123-456789abcdef"


async def test_flush_returns_when_all_is_stored(mq: AsyncSkep, db: psycopg.Connection):
    buffer = mq.queue("orders").buffer(**FOREVER)
    await buffer.flush()  # nothing to wait for
    for number in range(3):
        await buffer.push(number)
        await buffer.flush()
        assert stored(db) == list(range(number + 1))
    await buffer.close()


async def test_a_refused_message_does_not_stop_the_others(mq: AsyncSkep):
    """The others are stored in order; flush raises an error with the refused ones."""
    q = mq.queue("orders")
    await q.configure(max_payload_bytes=1000)
    buffer = q.buffer(**FOREVER)
    for number in range(20):
        await buffer.push("x" * 2000 if number in (3, 11, 19) else number)
    with refused(MessagesRefused, "the database refused 3 buffered messages") as caught:
        await buffer.flush()
    assert [(type(error), "x" * 2000 in text) for text, error in caught.error.refused] == [(PayloadTooLarge, True)] * 3
    assert await take(q) == [number for number in range(20) if number not in (3, 11, 19)]
    await buffer.flush()  # raised only once
    await buffer.push("fine")
    await buffer.close()
    assert await take(q) == ["fine"]


@pytest.mark.parametrize("way", ["push", "close", "block", "client"])
async def test_a_refusal_is_always_raised(clients: Callable[..., AsyncSkep], way: str):
    """The next push, the end of the buffer or the end of the client raises the error."""
    mq = clients()
    buffer = mq.queue("orders").buffer(size=1, delay=0)
    await buffer.push(1, partition="x" * 300)
    with refused(MessagesRefused, "partition"):
        if way == "push":
            await until(lambda: buffer.push("next"), "a push that raises")
        elif way == "close":
            await buffer.close()
        elif way == "block":
            async with buffer:
                pass
        else:
            await mq.close()


async def test_a_payload_that_is_not_json_is_refused_at_once(mq: AsyncSkep, db: psycopg.Connection):
    async with mq.queue("orders").buffer(**FOREVER) as buffer:
        await buffer.push(1)
        for bad in (float("nan"), {1}, "\0"):
            with refused(InvalidArgument, "item 0"):
                await buffer.push(bad)
        await buffer.push(2)
    assert stored(db) == [1, 2]


async def test_push_waits_when_the_buffer_is_full(mq: AsyncSkep, db: psycopg.Connection, module_database_url: str):
    """Back-pressure: the database is slow, so producers become slow, and memory stays bounded."""
    await mq.queue("orders").push("first")
    buffer = mq.queue("orders").buffer(size=5, delay=0, limit=20)
    accepted = 0

    async def produce() -> None:
        nonlocal accepted
        for number in range(40):
            await buffer.push(number)
            accepted += 1

    async with locked(module_database_url):
        producing = asyncio.create_task(produce())
        await until(lambda: accepted == 20, "the buffer to be full")
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        await until(lambda: db.execute(waiting).fetchall() == [(1,)], "its push to wait for the partition")
        assert (accepted, producing.done()) == (20, False)
    await producing
    await buffer.close()
    assert stored(db) == ["first", *range(40)]


async def test_nothing_is_lost_or_doubled_when_connections_die(mq: AsyncSkep, db: psycopg.Connection):
    """Every connection is killed again and again: accepted messages are stored in order, once."""
    others = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    kill = f"SELECT count(pg_terminate_backend(pid)) FROM {others}"
    async with mq.queue("orders").buffer(size=3, delay=0) as buffer:
        for number in range(60):
            await buffer.push(number)
            if number % 10 == 5:
                db.execute(sql.SQL(kill))  # pyright: ignore[reportArgumentType]
                await asyncio.sleep(0)
    assert (stored(db), broken(db)) == (list(range(60)), {})


async def test_missing_rights_are_an_error_and_not_an_endless_wait(clients: Callable[..., AsyncSkep], stranger: str):
    """The error is not retryable; it contains the messages."""
    buffer = clients(stranger).queue("orders").buffer()
    await buffer.push("a")
    with refused(MessagesRefused, "permission denied") as caught:
        await buffer.flush()
    ((text, error),) = caught.error.refused
    assert ('"a"' in text, type(error)) == (True, PermissionDenied)
    await buffer.close()


async def test_a_closed_buffer_accepts_nothing(mq: AsyncSkep, db: psycopg.Connection):
    buffer = mq.queue("orders").buffer(**FOREVER)
    await buffer.push(1)
    await buffer.close()
    await buffer.close()
    with refused(SkepError, "buffer is closed"):
        await buffer.push(2)
    assert stored(db) == [1]


async def test_closing_the_client_stores_the_messages_of_its_buffers(
    clients: Callable[..., AsyncSkep], db: psycopg.Connection
):
    mq = clients()
    buffers = [mq.queue("orders").buffer(**FOREVER) for _ in range(3)]
    for number, buffer in enumerate(buffers):
        await buffer.push(number)
    await mq.close()
    assert sorted(stored(db)) == [0, 1, 2]


async def test_a_buffer_of_a_closed_client_does_not_hang(clients: Callable[..., AsyncSkep]):
    mq = clients()
    buffer = mq.queue("orders").buffer()
    await mq.close()
    with suppress(SkepError):
        await buffer.push("too late")
        await buffer.flush()
        raise AssertionError("it was not stored")
    with suppress(SkepError):
        await buffer.close()


async def test_wrong_sizes_are_refused(mq: AsyncSkep):
    for wrong in ({"size": 0}, {"size": 10, "limit": 5}, {"delay": -1}):
        with refused(InvalidArgument):
            mq.queue("orders").buffer(**wrong)


ENDINGS = {
    "nothing": "",
    "exit": "sys.exit(3)",
    "error": "raise ValueError('oops')",
    "thread": "threading.Thread(target=lambda: [buffer.push(n) for n in range(100, 150)]).start()",
    "client closed": "mq.close()",
    "buffer closed": "buffer.close()",
}
# exit code, last line of the output, messages; if not 0, nothing and 100
ENDS = {
    ENDINGS["exit"]: (3, "", 100),
    ENDINGS["error"]: (1, "ValueError: oops", 100),
    ENDINGS["thread"]: (0, "", 150),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_the_end_of_the_program_stores_everything(db: psycopg.Connection, module_database_url: str, ending: str):
    """The program need not close anything, however it ends."""
    script = f"""
        import sys, threading
        from skep import Skep
        mq = Skep({module_database_url!r})
        buffer = mq.queue("orders").buffer(size=30, delay=3600)
        for number in range(100):
            buffer.push(number)
        {ending}
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    code, said, count = ENDS.get(ending, (0, "", 100))
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (code, [said] if said else [])
    assert stored(db) == list(range(count))
