"""Delivery and completion for each group (scenarios 27 to 35)."""

import asyncio
import random
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import InvalidArgument, StaleLease
from skep.upkeep import Job, Upkeep, expire_leases
from tests.client.verbs import LEASE_SECONDS, dead, drain, lag, leased, offsets, payloads, refused, take
from tests.engine.verbs import broken, pass_time
from tests.fanout.groups import AT_ONCE, Q, fan_out, kept, pending, subscribe


async def test_groups_do_not_see_each_other(mq: AsyncSkep):
    """Each receives every message, whatever the others have completed, leased or failed (scenario 27)."""
    q = mq.queue(Q)
    await subscribe(mq, "a", "b", "c", "d")
    await q.push_many([NewMessage(n, partition) for n in range(3) for partition in ("p", "q")])
    everything = {("p", n) for n in range(3)} | {("q", n) for n in range(3)}
    assert {(m.partition, m.payload) for m in await drain(q, "a")} == everything
    popped = await q.pop(group="b", batch=100, partitions=2)
    failed = await q.pop(group="c", batch=100, partitions=2)
    await failed.dead_letter(None, "no")
    assert {(m.partition, m.payload) for m in popped} == everything
    assert {(m.partition, m.payload) for m in await drain(q, "d")} == everything
    assert await lag(q, "b") == {"p": 3, "q": 3}


async def test_batch_sizes(mq: AsyncSkep):
    """Never more than requested, in order; an empty result is an empty batch and no error (scenario 28)."""
    q = mq.queue(Q)
    assert payloads(await q.pop(group="g", batch=5)) == []
    await q.push_many(range(7))
    sizes = []
    while batch := await q.pop(group="g", batch=3):
        sizes.append(payloads(batch))
        await batch.ack()
    assert sizes == [[0, 1, 2], [3, 4, 5], [6]]
    assert (len(batch), payloads(await q.pop(group="g", batch=3))) == (0, [])
    await batch.ack()  # there is nothing to acknowledge


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_two_workers_of_a_group(mq: AsyncSkep, concurrency: int):
    """Never the same message; with `concurrency` they work at once on disjoint runs of a partition (scenario 29)."""
    q = mq.queue(Q)
    await q.configure(concurrency=concurrency)
    await q.push_many(range(20))
    batches = await asyncio.gather(*(q.pop(group="g", batch=2) for _ in range(6)))
    popped = sorted(offset for batch in batches for offset in offsets(batch))
    assert popped == list(range(2 * concurrency))
    for batch in reversed(batches):
        await batch.ack()
    assert offsets(await drain(q)) == list(range(2 * concurrency, 20))


async def test_completion_is_idempotent(mq: AsyncSkep, db: psycopg.Connection):
    """Acknowledged twice, by several groups at once, or after the lease ended: counted once for each group.

    Scenario 30.
    """
    q = mq.queue(Q)
    groups = ["a", "b", "c"]
    await subscribe(mq, *groups)
    await q.push_many(range(2))
    batches = [await q.pop(group=group, batch=2) for group in groups]
    for _ in range(3):
        await asyncio.gather(*(batch.ack(batch[0]) for batch in batches))
        assert await fan_out(mq) == [(3, 3, []), (3, 0, groups)]
    for batch in batches:
        await batch.ack()
        with refused(StaleLease):
            await batch.ack()
    assert await fan_out(mq) == [(3, 3, [])] * 2
    assert [group.processed for group in await mq.groups(queue=Q)] == [2, 2, 2]
    assert broken(db) == {}


async def test_a_message_is_finished_when_all_groups_have_finished(mq: AsyncSkep):
    """Not before the last pending group (scenario 31)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await subscribe(mq, "a", "b", "c")
    await q.push("x")
    for group, left in (("a", ["b", "c"]), ("b", ["c"]), ("c", [])):
        assert (await mq.retain(), await kept(mq)) == ([], [0])
        await take(q, group)
        assert await pending(mq) == [left]
    await mq.retain()
    assert await kept(mq) == []


async def test_acks_without_a_valid_lease(mq: AsyncSkep, db: psycopg.Connection):
    """Of a paused group, with an unknown lease, for another's message or for none: refused, nothing changes.

    Scenario 32.
    """
    q = mq.queue(Q)
    await subscribe(mq, "g", "other")
    await q.push_many(range(3))
    ours, theirs = await q.pop(group="g", batch=2), await q.pop(group="other", batch=3)
    before = await fan_out(mq)
    with refused(InvalidArgument, "not in this batch"):
        await ours.ack(theirs[0])
    for stranger in (uuid4(), theirs[2].id):  # no message at all, and one that is not in the lease
        with refused(StaleLease):
            await ours.ack(ours[0]._replace(id=stranger))
    with refused(StaleLease):
        async with mq.transaction() as tx:
            tx.ack(ours)
            tx.push(Q, "never")
            await theirs.release()
            tx.ack(theirs)
    assert await fan_out(mq) == before
    await mq.pause("g", Q)
    for call in (ours.ack(), ours.ack(ours[0]), ours.fail(None, "x"), ours.dead_letter(ours[1], "x"), ours.release()):
        with refused(StaleLease):
            await call
    with refused(StaleLease):
        await ours.extend()
    assert await fan_out(mq) == before
    assert (await dead(mq, Q), leased(db), broken(db)) == ({}, 0, {})
    await mq.resume("g", Q)
    assert [(m.offset, m.attempt) for m in await drain(q)] == [(0, 1), (1, 1), (2, 1)]


async def test_failure_and_success(mq: AsyncSkep):
    """A failure does not finish; a later success does; a failure after success is ignored.

    Attempts are counted (scenario 33).
    """
    q = mq.queue(Q)
    await q.configure(retry_delay=0, retry_limit=5)
    await q.push_many("ab")
    for attempt in (1, 2, 3):
        batch = await q.pop(group="g", batch=2)
        assert [m.attempt for m in batch] == [attempt] * 2
        await batch.fail(None, "not yet")
        assert await pending(mq) == [["g"]] * 2
    batch = await q.pop(group="g", batch=2)
    await batch.ack(batch[0])
    await batch.fail(batch[0], "too late")
    await batch.ack(batch[1])
    with refused(StaleLease):
        await batch.fail(batch[1], "far too late")
    assert (await fan_out(mq), await dead(mq, Q)) == ([(1, 1, [])] * 2, {})
    assert len(await q.pop(group="g")) == 0


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_failing_fetching_and_completing_at_once(mq: AsyncSkep, db: psycopg.Connection, concurrency: int):
    """Each message is completed once for each group in the end, and all states agree (scenario 34)."""
    q = mq.queue(Q)
    await q.configure(retry_delay=0, retry_limit=1000, concurrency=concurrency, partial_failure="retry")
    groups = ["a", "b"]
    await subscribe(mq, *groups)
    await q.push_many([NewMessage(n, str(n % 2)) for n in range(40)])
    done: dict[str, list[int]] = {group: [] for group in groups}

    async def work(group: str, dice: random.Random) -> None:
        while len(done[group]) < 40:
            batch = await q.pop(group=group, batch=3, wait=0.02)
            for message in batch:
                if dice.random() < 0.25:
                    await batch.fail(message, "no luck")
                else:
                    await batch.ack(message)
                    done[group].append(message.payload)
                await asyncio.sleep(0)

    await asyncio.gather(*(work(group, random.Random(seed)) for group in groups for seed in range(3)))
    assert {group: sorted(numbers) for group, numbers in done.items()} == {group: list(range(40)) for group in groups}
    assert await fan_out(mq, partition="0") == await fan_out(mq, partition="1") == [(2, 2, [])] * 20
    assert (await dead(mq, Q), leased(db), broken(db)) == ({}, 0, {})


@pytest.mark.parametrize("upkeep", [True, False])
async def test_a_crash_after_a_pop(
    clients: Callable[..., AsyncSkep], mq: AsyncSkep, db: psycopg.Connection, *, upkeep: bool
):
    """The messages of a crashed consumer are delivered again when its lease expires, without manual action.

    Scenario 35.
    """
    await mq.queue(Q).push_many(range(2))
    crashed = clients()
    await crashed.queue(Q).pop(group="g", batch=2)
    await crashed.close()
    assert len(await mq.queue(Q).pop(group="g")) == 0
    pass_time(db, LEASE_SECONDS + 1)
    if upkeep:
        await Upkeep(mq, [Job("lease_expiry", 5, expire_leases)]).run_once()
        assert leased(db) == 0
    assert [(m.offset, m.attempt) for m in await drain(mq.queue(Q))] == [(0, 2), (1, 2)]
