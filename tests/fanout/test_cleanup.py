"""Cleanup: what retention deletes and when, in every queue, with dead groups (section H, scenario 108)."""

from typing import Any

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.upkeep import retain
from tests.client.verbs import drain, offsets, payloads, take
from tests.engine.verbs import broken, pass_time
from tests.fanout.verbs import AT_ONCE, HOUR, Q, kept, let_die, missed

DAY = 24 * HOUR


async def test_finished_and_past_retention(mq: AsyncSkep, db: psycopg.Connection):
    """Messages completed long ago are deleted; recently completed or uncompleted ones stay.

    In all configured queues (scenario 81).
    """
    for name in (Q, "second", "unconfigured"):
        if name != "unconfigured":
            await mq.queue(name).configure(completed_retention_seconds=HOUR)
        await mq.subscribe("a", name)
        await mq.queue(name).push_many(range(4))
        await take(mq.queue(name), "a", batch=3)
    assert [await kept(mq, queue=name) for name in (Q, "second", "unconfigured")] == [[0, 1, 2, 3]] * 3
    pass_time(db, HOUR + 1)
    await mq.heartbeat("a")
    await mq.queue(Q).push("young")
    await take(mq.queue(Q), "a")
    announced = await mq.retain(dry_run=True)
    assert {row.queue: row.messages for row in announced} == {Q: 3, "second": 3}
    assert await mq.retain() == announced
    assert await mq.retain() == []
    left = [await kept(mq, queue=name) for name in (Q, "second", "unconfigured")]
    assert left == [[3, 4], [3], [0, 1, 2, 3]]
    pass_time(db, HOUR + 1)
    assert [await kept(mq, queue=name) for name in (Q, "second")] == [[], [3]]
    assert broken(db) == {}


async def test_a_queue_without_subscribers(mq: AsyncSkep, db: psycopg.Connection):
    """Its messages have a retention of their own, until a group subscribes (scenario 82)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE, zero_subscriber_retention_seconds=HOUR)
    await q.push("early")
    assert await kept(mq) == [0]
    pass_time(db, HOUR + 1)
    assert await kept(mq) == []
    await q.push("for somebody")
    await mq.subscribe("a", Q)
    pass_time(db, HOUR + 1)
    await mq.heartbeat("a", Q)
    assert await kept(mq) == [1]
    await mq.cancel("a", Q)
    assert await kept(mq) == []


@pytest.mark.parametrize("rule", ["completed_retention_seconds", "retention_seconds", "max_size"])
async def test_partitions_go_with_a_dead_group_present(mq: AsyncSkep, db: psycopg.Connection, rule: str):
    """A partition is emptied and dropped although a dead group had not read it.

    Its missed messages are counted, and when it comes back it gets messages of the partition that is created again
    (scenario 108).
    """
    q = mq.queue(Q)
    options: dict[str, Any] = {rule: 1 if rule == "max_size" else 10, "dead_group_grace_seconds": 0}
    await q.configure(**options, drop_idle_seconds=DAY)
    for group in ("alive", "dead"):
        await mq.subscribe(group, Q)
    await q.push_many([NewMessage(n, "p") for n in range(5)])
    await take(q, "dead", batch=2)
    await drain(q, "alive")
    await let_die(mq, db, "dead")
    await retain(mq)
    pass_time(db, 11)
    left = [4] if rule == "max_size" else []
    assert await kept(mq, "p") == left
    assert await missed(mq) == {"dead": 3 - len(left)}
    pass_time(db, DAY)
    await retain(mq)
    assert len(await q.partitions()) == len(left)
    await q.push("anew", partition="p")
    came = await drain(q, "dead")
    assert payloads(came) == [*left, "anew"]
    assert offsets(came) == ([4, 5] if left else [0])
    assert offsets(await drain(q, "alive")) == ([5] if left else [0])
    assert broken(db) == {}
