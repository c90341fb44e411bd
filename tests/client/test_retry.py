"""Retries: the policy of a group, delays, and messages that fail alone."""

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import InvalidArgument, NotFound, StaleLease
from tests.client.test_ack import runs
from tests.client.verbs import dead
from tests.engine.verbs import broken, pass_time

Q = "orders"


async def test_the_policy_of_a_group(mq: AsyncSkep):
    await mq.queue(Q).configure(retry_limit=9, retry_delay=0)
    stored = await mq.subscribe("g", Q, retry_limit=1, retry_delay=0.5, max_retry_delay=4, retry_jitter=0)
    assert (stored.retry_limit, stored.retry_delay, stored.max_retry_delay, stored.retry_jitter) == (1, 0.5, 4, 0)
    (changed,) = await mq.configure_group("g", {"retry_limit": 0, "retry_jitter": None}, Q)
    assert (changed.retry_limit, changed.retry_delay, changed.max_retry_delay, changed.retry_jitter) == (
        0,
        0.5,
        4,
        None,
    )
    assert await mq.subscriptions("g") == [changed]
    await mq.queue(Q).push("poison")
    await (await mq.queue(Q).pop(group="g")).fail(None, "boom")
    assert await dead(mq, Q) == {0: "boom"}


async def test_an_invalid_policy(mq: AsyncSkep):
    with pytest.raises(InvalidArgument, match="retry_limit must be at least 0, got -1"):
        await mq.subscribe("g", Q, retry_limit=-1)
    with pytest.raises(NotFound, match="has no subscription"):
        await mq.configure_group("g", {"retry_limit": 1}, Q)


async def test_release_with_a_delay(mq: AsyncSkep, db: psycopg.Connection):
    await mq.queue(Q).push_many(range(2))
    await (await mq.queue(Q).pop(group="g", batch=2)).release(delay=100)
    assert await runs(mq, Q) == []
    pass_time(db, 101)
    assert await runs(mq, Q) == [([0, 1], 1)]


@pytest.mark.parametrize("by_message", [True, False])
async def test_fail_with_retry_after(mq: AsyncSkep, db: psycopg.Connection, *, by_message: bool):
    await mq.queue(Q).push(0)
    batch = await mq.queue(Q).pop(group="g")
    await batch.fail(batch[0] if by_message else None, "busy", retry_after=100)
    pass_time(db, 99)
    assert await runs(mq, Q) == []
    pass_time(db, 2)
    assert await runs(mq, Q) == [([0], 2)]


async def test_fail_alone(mq: AsyncSkep, db: psycopg.Connection):
    """It ends the lease, so the end of the block has nothing to acknowledge."""
    await mq.queue(Q).configure(retry_delay=0)
    await mq.queue(Q).push_many(range(5))
    async with await mq.queue(Q).pop(group="g", batch=4) as batch:
        await batch.ack(batch[0])
        await batch.fail(batch[1], "boom", alone=True)
        assert not batch.open
        with pytest.raises(StaleLease):
            await batch.ack(batch[2])
    assert await dead(mq, Q) == {}
    assert await runs(mq, Q) == [([1], 2), ([2, 3], 1), ([4], 1)]
    assert broken(db) == {}


async def test_fail_alone_in_one_of_several_partitions(mq: AsyncSkep):
    """The leases of the other partitions continue."""
    await mq.queue(Q).configure(retry_delay=0)
    for partition in "ab":
        await mq.queue(Q).push(partition, partition=partition)
    batch = await mq.queue(Q).pop(group="g", batch=2, partitions=2)
    await batch.fail(batch[0], "boom", alone=True)
    assert batch.open
    await batch.ack(batch[1])
    assert not batch.open
    (again,) = await mq.queue(Q).pop(group="g", batch=2)
    assert (again.partition, again.attempt) == (batch[0].partition, 2)


async def test_a_batch_cannot_fail_alone(mq: AsyncSkep):
    await mq.queue(Q).push(0)
    batch = await mq.queue(Q).pop(group="g")
    with pytest.raises(InvalidArgument, match="alone needs a message"):
        await batch.fail(None, "boom", alone=True)
    await batch.ack()


async def test_failures_in_a_transaction(mq: AsyncSkep, db: psycopg.Connection):
    await mq.queue(Q).push_many(range(3))
    batch = await mq.queue(Q).pop(group="g", batch=3)
    async with mq.transaction() as tx:
        tx.ack(batch, batch[0])
        tx.fail(batch, batch[1], "busy", retry_after=100, alone=True)
    assert not batch.open
    assert await runs(mq, Q) == []
    pass_time(db, 101)
    assert await runs(mq, Q) == [([1], 2), ([2], 1)]


async def test_explain_start(mq: AsyncSkep):
    await mq.queue(Q).push_many(range(3))
    unknown = await mq.explain_start("g", Q)
    assert (unknown.scope, unknown.start_offset, unknown.has_started) == (None, None, False)
    await mq.subscribe("g", Q, mode="offset", start_from=2)
    found = await mq.explain_start("g", Q)
    assert (found.scope, found.mode, found.asked_offset, found.start_offset) == ("queue", "offset", 2, 2)
    assert not found.has_started
    await (await mq.queue(Q).pop(group="g")).ack()
    assert (await mq.explain_start("g", Q)).has_started
    assert (await mq.explain_start("g", Q, "nowhere")).start_offset is None
