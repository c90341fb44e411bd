"""Delayed messages: by push, buffer, transaction and inside the caller's transaction."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from skep import AsyncSkep, NewMessage
from skep.errors import InvalidArgument
from skep.upkeep import append_delayed
from tests.client.faces import Face, in_thread
from tests.client.verbs import payloads, refused, take
from tests.engine.verbs import broken, pass_time

HOUR = 3600


async def waits(mq: AsyncSkep) -> list[Any]:
    return [message.payload for message in await mq.list_delayed("orders")]


async def test_a_receipt_has_the_due_time(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    at = datetime(2090, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))
    for receipt in (
        await q.push(1, delay=HOUR),
        await q.push(2, delay=timedelta(hours=1)),
        await q.push(3, deliver_at=at),
    ):
        assert (receipt.status, receipt.offset) == ("delayed", None)
        assert receipt.due_at is not None
    assert receipt.due_at == at
    first, *_ = await q.delayed()
    assert (first.queue, first.partition, first.payload) == ("orders", "Default", 1)
    assert timedelta(minutes=59) < first.due_at - datetime.now(UTC) < timedelta(minutes=61)
    assert (await q.status()).delayed == 3
    assert (await take(q), broken(db)) == ([], {})


async def test_many_with_and_without_a_delay(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    receipts = await q.push_many([1, NewMessage(2, delay=HOUR), NewMessage(3, deliver_at=datetime.now(UTC))])
    assert [receipt.status for receipt in receipts] == ["queued", "delayed", "queued"]
    assert await take(q) == [1, 3]
    pass_time(db, HOUR)
    assert (await mq.append_delayed()).queues == ["orders"]
    assert (await take(q), await waits(mq)) == ([2], [])


async def test_cancel(mq: AsyncSkep, db: psycopg.Connection):
    receipt = await mq.queue("orders").push(1, delay=HOUR)
    assert [await mq.cancel_delayed(receipt.id) for _ in range(2)] == [True, False]
    assert not await mq.cancel_delayed(uuid4())
    pass_time(db, HOUR)
    assert await take(mq.queue("orders")) == []


async def test_a_buffer(mq: AsyncSkep, db: psycopg.Connection):
    async with mq.queue("orders").buffer() as buffer:
        await buffer.push(1, delay=HOUR)
        await buffer.push(2, deliver_at=datetime.now(UTC) + timedelta(hours=2))
        await buffer.push(3)
        with refused(InvalidArgument, "delay and deliver_at are both given"):
            await buffer.push(4, delay=1, deliver_at=datetime.now(UTC))
        with refused(InvalidArgument, "delay must be a number of seconds, got nan"):
            await buffer.push(4, delay=float("nan"))
    assert (await waits(mq), await take(mq.queue("orders"))) == ([1, 2], [3])
    pass_time(db, HOUR)
    assert await take(mq.queue("orders")) == [1]


async def test_a_transaction(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.push("work")
    batch = await q.pop()
    async with mq.transaction() as transaction:
        transaction.push("orders", 1, delay=HOUR)
        transaction.push("orders", 2, deliver_at=datetime(2090, 1, 1, tzinfo=UTC))
        transaction.push("orders", 3)
        transaction.ack(batch)
    assert [receipt.status for receipt in transaction.receipts] == ["delayed", "delayed", "queued"]
    assert transaction.receipts[1].due_at == datetime(2090, 1, 1, tzinfo=UTC)
    assert (await waits(mq), payloads(await q.pop(batch=9))) == ([1, 2], [3])


async def test_inside_the_transaction_of_the_caller(mq: AsyncSkep, face: Face, module_database_url: str):
    q = mq.queue("orders")
    if face == "async":
        async with await psycopg.AsyncConnection.connect(module_database_url) as connection:
            await q.push(1, delay=HOUR, connection=connection)
            await q.push_many([2, NewMessage(3, delay=HOUR)], connection=connection)
            assert await waits(mq) == []
    else:
        with psycopg.connect(module_database_url) as connection:
            await q.push(1, delay=HOUR, connection=connection)
            await q.push_many([2, NewMessage(3, delay=HOUR)], connection=connection)
            assert await waits(mq) == []
    assert (await waits(mq), await take(q)) == ([1, 3], [2])


async def test_invalid_arguments(mq: AsyncSkep):
    q = mq.queue("orders")
    with refused(InvalidArgument, "deliver_at must have a time zone, got 2030-01-31T00:00:00"):
        await q.push(1, deliver_at=datetime(2030, 1, 31))  # noqa: DTZ001
    with refused(InvalidArgument, "delay must be between 0 and 315360000 seconds, got -1"):
        await q.push(1, delay=-1)
    with refused(InvalidArgument, "item 1: delay and deliver_at are both given"):
        await q.push_many([1, NewMessage(2, delay=1, deliver_at=datetime.now(UTC))])
    assert await mq.queues() == []


def heard(db: psycopg.Connection) -> list[list[str]]:
    return [json.loads(note.payload)["queues"] for note in db.notifies(timeout=20, stop_after=1)]


async def test_upkeep_wakes_waiting_consumers(mq: AsyncSkep, db: psycopg.Connection):
    """In other processes, by NOTIFY; test_wake.py tests the effect."""
    db.execute("LISTEN skep")
    await mq.queue("orders").push("x", delay=HOUR)
    assert await in_thread(lambda: heard(db)) == [["orders"]]  # of the push
    pass_time(db, HOUR)
    async with AsyncSkep(make_conninfo(db.info.dsn, password=db.info.password)) as upkeep:
        assert await append_delayed(upkeep) == "appended 1 delayed messages"
        assert await append_delayed(upkeep) is None
        assert await in_thread(lambda: heard(db)) == [["orders"]]
    assert await take(mq.queue("orders")) == ["x"]


async def test_a_consumer_gets_it_when_it_is_due(mq: AsyncSkep):
    """Without upkeep: the pop of the consumer appends the message."""
    q = mq.queue("orders")
    await q.push("later", delay=0.3)
    batch = await q.pop(wait=20)
    assert payloads(batch) == ["later"]
    assert batch[0].created_at <= datetime.now(UTC)
