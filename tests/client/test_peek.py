"""Peek: stored messages, consumed or not."""

from uuid import UUID

import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import NotFound


async def places(mq: AsyncSkep, partition: str | None = None, first_offset: int = 0, limit: int = 100) -> list[str]:
    return [f"{m.partition}{m.offset}" for m in await mq.peek("orders", partition, first_offset, limit)]


async def test_partitions_and_offsets(mq: AsyncSkep):
    sizes = {"c": 5, "a": 3, "b": 2}
    await mq.queue("orders").push_many(
        NewMessage(n, partition) for partition, size in sizes.items() for n in range(size)
    )
    assert await mq.clear_queue("orders", "b") == 2
    assert await places(mq) == ["a0", "a1", "a2", "c0", "c1", "c2", "c3", "c4"]
    assert await places(mq, limit=4) == ["a0", "a1", "a2", "c0"]
    assert await places(mq, first_offset=2) == ["a2", "c2", "c3", "c4"]
    assert await places(mq, "c", 1, 2) == ["c1", "c2"]
    assert await places(mq, "b") == await places(mq, "nothing") == await places(mq, first_offset=9) == []


async def test_the_whole_message(mq: AsyncSkep):
    trace = UUID("00000000-0000-4000-8000-000000000001")
    receipt = await mq.queue("orders").push(
        {"id": 1}, partition="a", transaction_id="t", headers={"h": 1}, trace_id=trace
    )
    (message,) = await mq.peek("orders")
    assert (message.queue, message.partition, message.offset, message.id) == ("orders", "a", 0, receipt.id)
    assert (message.payload, message.headers) == ({"id": 1}, {"h": 1})
    assert (message.transaction_id, message.trace_id) == ("t", trace)
    assert (message.created_at, message.deleted) == (receipt.created_at, False)
    assert await mq.find(receipt.id) == message


async def test_deleted_messages(mq: AsyncSkep):
    first, second = await mq.queue("orders").push_many([1, 2])
    await mq.delete_message(first.id)
    assert [(m.payload, m.deleted) for m in await mq.peek("orders")] == [(None, True), (2, False)]
    await mq.clear_queue("orders")
    assert await mq.find(second.id) is None
    assert await mq.find(UUID(int=0)) is None
    with pytest.raises(NotFound):
        await mq.clear_queue("nothing")
