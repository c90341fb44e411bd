"""Push: messages are stored once, completely or not at all."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid4

import psycopg

from skep import AsyncSkep, NewMessage
from skep.errors import InvalidArgument, PayloadTooLarge
from tests.client.faces import in_thread
from tests.client.verbs import drain, hold, lag, payloads, refused, take
from tests.engine.verbs import broken, push

TREE = {"text": "ä€🐝", "numbers": [0, -1, 1.5, 2**70], "none": None, "yes": True, "deep": {"a": [{"b": []}]}}


async def test_a_receipt_has_partition_and_offset(mq: AsyncSkep):
    q = mq.queue("orders")
    before = datetime.now(UTC)
    first, second = await q.push({"n": 1}), await q.push({"n": 2})
    assert (first.status, first.offset, second.offset) == ("queued", 0, 1)
    assert (first.partition_id, second.created_at >= first.created_at >= before) == (second.partition_id, True)
    (batch,) = await hold(q, 1)
    assert [(m.id, m.partition_id, m.offset, m.created_at) for m in batch] == [
        (r.id, r.partition_id, r.offset, r.created_at) for r in (first, second)
    ]


async def test_every_field_is_delivered(clients: Callable[..., AsyncSkep]):
    mq = clients(producer="shop-1")
    trace = uuid4()
    await mq.queue("orders").push(TREE, partition="eu", transaction_id="once", headers={"type": "x"}, trace_id=trace)
    (message,) = await mq.queue("orders").pop()
    assert (message.queue, message.partition, message.payload) == ("orders", "eu", TREE)
    assert (message.transaction_id, message.headers, message.trace_id) == ("once", {"type": "x"}, trace)
    assert (message.producer, message.attempt, message.offset) == ("shop-1", 1, 0)
    assert message.lease_expires_at > datetime.now(UTC)


async def test_many_in_one_call(mq: AsyncSkep):
    """Payloads and `NewMessage` can be mixed; receipts are in the order of the items."""
    q = mq.queue("orders")
    receipts = await q.push_many(
        [1, NewMessage(2, "eu"), "three", NewMessage(4, "eu", trace_id=str(UUID(int=7))), None]
    )
    assert [receipt.offset for receipt in receipts] == [0, 0, 1, 1, 2]
    assert receipts[0].partition_id == receipts[2].partition_id != receipts[1].partition_id
    assert sorted(map(str, payloads(await drain(q)))) == ["1", "2", "4", "None", "three"]
    assert await q.push_many([]) == []


async def test_many_queues_in_one_call(mq: AsyncSkep):
    await mq.push_many([("a", NewMessage(1)), ("b", NewMessage(2)), ("a", NewMessage(3))])
    assert [await take(mq.queue(name)) for name in ("a", "b")] == [[1, 3], [2]]
    assert await mq.push_many([]) == []


async def test_a_large_batch_keeps_its_order(mq: AsyncSkep):
    q = mq.queue("orders")
    receipts = await q.push_many(range(5000))
    assert [receipt.offset for receipt in receipts] == list(range(5000))
    assert payloads(await drain(q, batch=1000)) == list(range(5000))


async def test_one_invalid_item_and_nothing_is_stored(mq: AsyncSkep, db: psycopg.Connection):
    """The client or the database refuses it and names the item, and no other item is stored."""
    q = mq.queue("orders")
    await q.configure(max_payload_bytes=1000)
    for bad, kind in [
        (float("nan"), InvalidArgument),
        ("a\0b", InvalidArgument),
        (NewMessage(1, partition="x" * 256), InvalidArgument),
        (NewMessage(1, partition=""), InvalidArgument),
        (NewMessage(1, transaction_id=""), InvalidArgument),
        (NewMessage(1, trace_id="no uuid"), InvalidArgument),
        (NewMessage(1, headers=[1]), InvalidArgument),  # pyright: ignore[reportArgumentType]
        ("x" * 2000, PayloadTooLarge),
    ]:
        with refused(kind):
            await q.push_many([0, bad, 2])
        assert (await take(q), broken(db)) == ([], {}), bad


async def test_the_item_is_named(mq: AsyncSkep):
    q = mq.queue("orders")
    for bad in (
        {1, 2},
        NewMessage(1, headers=[1]),  # pyright: ignore[reportArgumentType]
        NewMessage(1, partition=7),  # pyright: ignore[reportArgumentType]
        NewMessage(1, partition="x" * 256),
        NewMessage(1, transaction_id=7),  # pyright: ignore[reportArgumentType]
        NewMessage(1, transaction_id="x" * 300),
        NewMessage(1, trace_id="no uuid"),
    ):
        with refused(InvalidArgument, "item 2") as caught:
            await q.push_many([0, 1, bad, 3])
        assert caught.error.hint or "must be" in caught.error.message


async def test_a_repeated_transaction_id_is_stored_once(mq: AsyncSkep):
    """The repeated push returns the stored message; another partition has its own."""
    q = mq.queue("orders")
    first = await q.push("a", transaction_id="t")
    again = await q.push("b", transaction_id="t")
    other = await q.push("c", transaction_id="t", partition="eu")
    assert [r.status for r in (first, again, other)] == ["queued", "duplicate", "queued"]
    assert (again.id, again.offset, again.created_at) == (first.id, first.offset, first.created_at)
    assert other.id != first.id
    within = await q.push_many([NewMessage(n, transaction_id="u") for n in range(3)])
    assert [(r.status, r.offset) for r in within] == [("queued", 1), ("duplicate", 1), ("duplicate", 1)]
    assert sorted(map(str, payloads(await drain(q)))) == ["0", "a", "c"]


async def test_eight_repeats_at_once(mq: AsyncSkep):
    """At the same time."""
    q = mq.queue("orders")
    for round_ in range(5):
        pushes = [q.push(n, transaction_id=f"t{round_}") for n in range(8)]
        receipts = await asyncio.gather(*pushes)
        assert sorted(receipt.status for receipt in receipts) == ["duplicate"] * 7 + ["queued"]
        assert len({receipt.id for receipt in receipts}) == 1
    assert len(await drain(q)) == 5


async def test_opposite_orders_do_not_deadlock(mq: AsyncSkep):
    """Many pushes name the same partitions in opposite order."""
    q = mq.queue("orders")
    partitions = [f"partition {number}" for number in range(10)]
    pushes = [
        q.push_many([NewMessage(n, partition) for partition in partitions[:: 1 if n % 2 else -1]]) for n in range(20)
    ]
    await asyncio.gather(*pushes)
    assert len(await drain(q)) == 200


async def test_producers_with_open_transactions_while_a_group_consumes(
    mq: AsyncSkep, module_database_url: str, db: psycopg.Connection
):
    """With random pauses before the commit, all messages are delivered, with dense offsets in order."""
    producers, each = 4, 25

    def produce(number: int) -> None:
        pauses = random.Random(number)
        with psycopg.connect(module_database_url) as connection:
            for count in range(each):
                push(connection, "orders", [number, count])
                connection.execute("SELECT pg_sleep(%s)", [pauses.random() * 0.01])
                connection.commit()

    work = asyncio.gather(*[in_thread(partial(produce, number)) for number in range(producers)])
    seen = []
    q = mq.queue("orders")
    while len(seen) < producers * each:
        batch = await q.pop(group="g", batch=7, wait=5)
        seen += batch
        await batch.ack()
    await work
    assert [message.offset for message in seen] == list(range(producers * each))
    for number in range(producers):
        assert [count for who, count in payloads(seen) if who == number] == list(range(each))
    assert broken(db) == {}


async def test_a_deleted_message_is_skipped(mq: AsyncSkep):
    q = mq.queue("orders")
    receipts = await q.push_many(["a", "b", "c"])
    assert await mq.delete_message(receipts[1].id)
    assert not await mq.delete_message(receipts[1].id)
    assert [(message.offset, message.payload) for message in await drain(q)] == [(0, "a"), (2, "c")]
    assert await lag(q) == {"Default": 0}
