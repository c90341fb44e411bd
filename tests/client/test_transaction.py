"""Pushes and acks in one transaction."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import InvalidArgument, NotFound, StaleLease
from tests.client.verbs import LEASE_SECONDS, dead, drain, hold, lag, leased, payloads, refused, take
from tests.engine.verbs import broken, pass_time


async def test_a_transaction_stores_everything(mq: AsyncSkep, db: psycopg.Connection):
    """Pushes to several queues and every kind of ack are stored together."""
    q = mq.queue("in")
    await q.push_many("abcd")
    (batch,) = await hold(q, 1)
    async with mq.transaction() as tx:
        tx.push("out", 1, partition="p", transaction_id="t", headers={"h": 1})
        tx.push("audit", "done")
        tx.ack(batch, batch[0])
        tx.fail(batch, batch[1], ValueError("bad"))
        tx.dead_letter(batch, batch[2], "worse")
        tx.push("out", 2, partition="p", transaction_id="t")
        tx.ack(batch)
        assert (leased(db), tx.receipts, batch.open) == (1, [], True)  # nothing has happened yet
    assert [(receipt.status, receipt.offset) for receipt in tx.receipts] == [
        ("queued", 0), ("queued", 0), ("duplicate", 0),
    ]  # fmt: skip
    assert tx.receipts[0].id == tx.receipts[2].id != tx.receipts[1].id
    assert abs((tx.receipts[0].created_at - datetime.now(UTC)).total_seconds()) < 60
    assert (batch.open, await lag(q)) == (False, {"Default": 0})
    assert await dead(mq, "in") == {1: "ValueError: bad", 2: "worse"}
    assert [await take(mq.queue(name)) for name in ("out", "audit")] == [[1], ["done"]]
    assert broken(db) == {}


async def test_nothing_is_stored_if_the_block_raises(mq: AsyncSkep, db: psycopg.Connection):
    """The block raises before anything is sent."""
    q = mq.queue("in")
    await q.push("a")
    (batch,) = await hold(q, 1)
    with suppress(ZeroDivisionError):
        async with mq.transaction() as tx:
            tx.push("out", 1)
            tx.ack(batch)
            raise ZeroDivisionError
    assert (tx.receipts, batch.open, leased(db), await mq.queues("out")) == ([], True, 1, [])
    await batch.ack()


@pytest.mark.parametrize("why", ["expired", "seeked", "acked", "deleted"])
async def test_nothing_is_stored_if_a_lease_has_ended(mq: AsyncSkep, db: psycopg.Connection, why: str):
    """With one stale ack neither the push nor the other ack is stored."""
    q = mq.queue("in")
    await q.push("a", partition="one")
    await q.push("b", partition="two")
    fine, stale = await hold(q, 2)
    await fine.extend(10 * LEASE_SECONDS)
    if why == "expired":
        pass_time(db, LEASE_SECONDS + 1)
    elif why == "seeked":
        await q.seek("g", "beginning", partition=stale[0].partition)
    elif why == "acked":
        await stale.ack()
    else:
        await q.delete_partition(stale[0].partition)
    with refused(StaleLease, "ack 1 of the transaction"):
        async with mq.transaction() as tx:
            tx.push("out", 1)
            tx.ack(fine)
            tx.ack(stale)
    assert (fine.open, await mq.queues("out"), tx.receipts) == (True, [], [])
    await fine.ack()
    assert broken(db) == {}


async def test_nothing_is_stored_if_a_message_is_refused(mq: AsyncSkep):
    """The client or the database refuses it."""
    q = mq.queue("in")
    await q.push("a")
    (batch,) = await hold(q, 1)
    for bad, partition in ((float("nan"), "p"), ("fine", "")):
        with refused(InvalidArgument):
            async with mq.transaction() as tx:
                tx.ack(batch)
                tx.push("out", 1)
                tx.push("out", bad, partition=partition)
    assert (batch.open, await mq.queues("out")) == (True, [])
    with refused(NotFound, "out"):
        await mq.queue("out").status()


async def test_an_empty_transaction_makes_no_call(mq: AsyncSkep):
    await mq.close()
    async with mq.transaction() as tx:
        pass
    assert tx.receipts == []


async def test_concurrent_transactions_lose_and_double_nothing(mq: AsyncSkep, db: psycopg.Connection):
    """Four workers move messages to the next queue, and some of them fail again and again."""
    q, out = mq.queue("in"), mq.queue("out")
    await q.configure(concurrency=4)
    await q.push_many(range(60))

    async def relay(number: int) -> None:
        while batch := await q.pop(group="g", batch=3):
            with suppress(ZeroDivisionError):
                async with mq.transaction() as tx:
                    for message in batch:
                        tx.push("out", message.payload)
                    tx.ack(batch)
                    if batch[0].attempt == 1 and (batch[0].offset + number) % 2:
                        await batch.fail(None, "again, please")  # counts an attempt: the next one succeeds
                        raise ZeroDivisionError

    await mq.configure_queue("in", {"retry_delay": 0})
    await asyncio.gather(*[relay(number) for number in range(4)])
    await relay(0)
    assert sorted(payloads(await drain(out))) == list(range(60))
    assert (await lag(q), broken(db)) == ({"Default": 0}, {})
