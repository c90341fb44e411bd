"""Least privilege: programs whose database user has one role and no other rights."""

import asyncio
import time
from collections.abc import Callable

import psycopg
import pytest

from skep import AsyncSkep, Message, NewMessage
from skep.client.plan import Backoff
from skep.errors import PermissionDenied
from tests.client.verbs import drain, lag, payloads, refused, take, until

Clients = Callable[..., AsyncSkep]
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN skep'"


@pytest.fixture
def producer(clients: Clients, user_url: Callable[..., str]) -> AsyncSkep:
    return clients(user_url("skep_producer"))


@pytest.fixture
def consumer(clients: Clients, user_url: Callable[..., str]) -> AsyncSkep:
    return clients(user_url("skep_consumer"), poll_interval=0.05)


async def test_a_producer_produces(producer: AsyncSkep, mq: AsyncSkep):
    """It may push in every way, and nothing else."""
    q = producer.queue("orders")
    await q.push(1, transaction_id="t")
    assert (await q.push(1, transaction_id="t")).status == "duplicate"
    await q.push_many([2, 3])
    await producer.push_many([("orders", NewMessage(4))])
    async with q.buffer() as buffer:
        await buffer.push(5)
    assert await take(mq.queue("orders")) == [1, 2, 3, 4, 5]
    for forbidden in (q.pop(), q.lag("g"), producer.subscribe("g", "orders"), q.delete(), q.status(), q.configure()):
        with refused(PermissionDenied):
            await forbidden


async def test_a_consumer_consumes(consumer: AsyncSkep, mq: AsyncSkep):
    """It may consume in every way, and nothing else."""
    q = consumer.queue("orders")
    await mq.queue("orders").push_many(range(8))
    await consumer.subscribe("g", "orders")
    batch = await q.pop(group="g", batch=5)
    await batch.extend()
    await batch.ack(batch[0])
    await batch.fail(batch[1], "bad")
    await batch.dead_letter(batch[2], "worse")
    await batch.release()
    async with await q.pop(group="g", batch=1):
        pass
    assert payloads(await q.pop(group="g", auto_ack=True, wait=1)) == [4]
    async for batch in q.consume(group="g", batch=1, idle_timeout=0.05):
        assert batch[0].payload >= 5
    assert await lag(q) == {"Default": 0}
    for forbidden in (q.push(1), q.delete(), q.seek("g", "end"), consumer.dead_letters(), consumer.groups()):
        with refused(PermissionDenied):
            await forbidden


async def test_handlers_of_a_consumer(consumer: AsyncSkep, mq: AsyncSkep):
    seen = []

    @consumer.consumer("orders", group="g", lease_time=0.3)
    async def handle(message: Message) -> None:
        seen.append(message.payload)

    await mq.queue("orders").push_many("abc")
    running = asyncio.create_task(handle.run())
    await until(lambda: len(seen) == 3, "three messages")
    await handle.stop()
    await running
    assert await lag(mq.queue("orders")) == {"Default": 0}


async def test_a_producer_wakes_a_consumer(
    producer: AsyncSkep, consumer: AsyncSkep, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
):
    """NOTIFY and LISTEN need no other rights; polling is disabled here."""
    monkeypatch.setattr(Backoff, "pause", lambda self, left: left)
    task = asyncio.create_task(consumer.queue("orders").pop(group="g", wait=20))
    await until(lambda: db.execute(LISTENERS).fetchall() == [(1,)], "the consumer to listen")
    looked = "SELECT count(*) FROM skep.subscriptions"
    await until(lambda: db.execute(looked).fetchall() == [(1,)], "the first look")
    await producer.queue("orders").push("a")
    assert payloads(await task) == ["a"]


async def test_a_consumer_closes_at_once_and_quietly(consumer: AsyncSkep, caplog: pytest.LogCaptureFixture):
    """It may not call `notify`, and need not."""
    await consumer.queue("orders").pop(wait=0.05)
    began = time.monotonic()
    await consumer.close()
    assert time.monotonic() - began < 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


async def test_both_roles_for_a_transaction(clients: Clients, user_url: Callable[..., str], consumer: AsyncSkep):
    """A transaction needs the rights of its parts."""
    both = clients(user_url("skep_producer", "skep_consumer"))
    await both.queue("in").push_many([1, 2])
    batch = await consumer.queue("in").pop(group="g")
    with refused(PermissionDenied):
        async with consumer.transaction() as tx:
            tx.push("out", 1)
            tx.ack(batch)
    async with both.transaction() as tx:
        tx.push("out", 1)
        tx.ack(batch)
    assert [await take(both.queue(name)) for name in ("in", "out")] == [[2], [1]]


async def test_an_administrator_administers(clients: Clients, user_url: Callable[..., str]):
    admin = clients(user_url("skep_admin"))
    q = admin.queue("orders")
    await q.configure(namespace="shop", retry_limit=0)
    receipts = await q.push_many("abc")
    await (await q.pop(group="g", batch=2)).fail(None, "bad")
    assert [(letter.payload, letter.error) for letter in await admin.dead_letters("orders")] == [
        ("b", "bad"),
        ("a", "bad"),
    ]
    status = await q.status()
    assert (status.namespace, status.messages, status.dead_letters, status.options["retry_limit"]) == ("shop", 3, 2, 0)
    (group,) = await admin.groups(queue="orders")
    assert (group.group, group.lag, group.dead_letters) == ("g", 1, 2)
    (row,) = await admin.partitions("orders")
    assert (row.partition, row.messages, row.last_offset) == ("Default", 3, 2)
    assert (await q.seek("g", "beginning")).partitions == 1
    assert await admin.delete_message(receipts[1].id)
    assert payloads(await drain(q)) == ["a", "c"]
    assert await admin.delete_group("g") == 1
    assert await q.delete_partition("Default")
    assert await q.delete()


async def test_a_user_without_rights(clients: Clients, user_url: Callable[..., str]):
    """A user without USAGE on the schema gets PermissionDenied, not an error about a missing schema."""
    with refused(PermissionDenied):
        await clients(user_url()).queue("orders").push(1)
