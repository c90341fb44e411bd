"""Traces of messages."""

from collections.abc import Callable

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import PayloadTooLarge, PermissionDenied

TRACES = """
    SELECT t.group_name, t.event_type, t.data, t.worker, t."offset", t.partition_id,
           array(SELECT n.name FROM skep.trace_names n WHERE n.trace_id = t.id ORDER BY n.name)
    FROM skep.traces t ORDER BY t.id
"""


async def test_a_trace_of_a_message(clients: Callable[..., AsyncSkep], db: psycopg.Connection):
    mq = clients(producer="worker 3")
    await mq.queue("orders").push_many([1, 2])
    await mq.queue("orders").push(3, transaction_id="three", partition="other")
    for message in await mq.queue("orders").pop(group="billing", batch=3, partitions=2):
        assert await mq.trace(message, {"text": "billed"}, group="billing", names=["b", "a"])
        assert await mq.trace(message, {"n": message.payload}, event="step")
        expected = [
            ("billing", "info", {"text": "billed"}, "worker 3", message.offset, message.partition_id, ["a", "b"]),
            ("__QUEUE_MODE__", "step", {"n": message.payload}, "worker 3", message.offset, message.partition_id, []),
        ]
        assert db.execute(TRACES).fetchall()[-2:] == expected


async def test_a_deleted_message(mq: AsyncSkep, db: psycopg.Connection):
    await mq.queue("orders").push(1)
    (message,) = await mq.queue("orders").pop()
    await mq.delete_message(message.id)
    assert await mq.trace(message, {"text": "late"}) is False
    assert db.execute(TRACES).fetchall() == []


async def test_invalid_traces(mq: AsyncSkep, clients: Callable[..., AsyncSkep], user_url: Callable[..., str]):
    await mq.queue("orders").push(1)
    (message,) = await mq.queue("orders").pop()
    with pytest.raises(PayloadTooLarge):
        await mq.trace(message, {"text": "".join(map(str, range(40_000)))})
    with pytest.raises(PermissionDenied):
        await clients(user_url("skep_consumer")).trace(message, {})
