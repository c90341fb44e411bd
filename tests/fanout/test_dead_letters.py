"""Retry and dead letters of each group (scenarios 42 to 47; 48 is in test_upkeep.py)."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import InvalidArgument
from skep.upkeep import JOBS, Upkeep
from tests.client.verbs import LEASE_SECONDS, dead, drain, lag, payloads, refused, take
from tests.engine.verbs import broken, pass_time
from tests.fanout.groups import Q, fan_out, subscribe


@pytest.fixture
async def ids(mq: AsyncSkep) -> list[int]:
    """Two groups have dead-lettered messages 0 to 2, with two kinds of error. Return the ids, oldest first."""
    q = mq.queue(Q)
    await q.configure(retry_limit=0)
    await q.push_many(range(3))
    for group in ("a", "b"):
        batch = await q.pop(group=group, batch=3)
        for message in batch:
            await batch.fail(message, f"Error {message.offset % 2}")
    return sorted(dead_letter.id for dead_letter in await mq.dead_letters(Q))


async def test_a_failure_below_the_limit(mq: AsyncSkep):
    """The message is delivered again with its attempts; completed ones are not.

    Without failures nothing happens (scenario 42).
    """
    q = mq.queue(Q)
    await q.configure(retry_delay=0, retry_limit=3, partial_failure="retry")
    await q.push_many("abc")
    batch = await q.pop(group="g", batch=3)
    await batch.ack(batch[1])
    await batch.fail(None, "not yet")
    again = await q.pop(group="g", batch=3)
    assert [(m.payload, m.attempt) for m in again] == [("a", 2), ("c", 2)]
    await again.ack()
    assert (len(await q.pop(group="g")), await dead(mq, Q)) == (0, {})
    assert (await mq.redrive(), await mq.purge_dead_letters(), await mq.count_dead_letters()) == ([], 0, [])


@pytest.mark.parametrize("how", ["fail", "expire"])
async def test_a_failure_at_the_limit(mq: AsyncSkep, db: psycopg.Connection, how: str):
    """The message is dead-lettered once, however often and by however many scans (scenario 43)."""
    q = mq.queue(Q)
    await q.configure(retry_delay=0, retry_limit=2)
    await q.push("a")
    for attempt in (1, 2, 3):
        batch = await q.pop(group="g")
        assert batch[0].attempt == attempt
        if how == "fail":
            await batch.fail(None, "no")
        else:
            pass_time(db, LEASE_SECONDS + 1)
            await asyncio.gather(*(mq.expire_leases() for _ in range(4)))
    for _ in range(3):
        await Upkeep(mq, JOBS).run_once()
        assert len(await q.pop(group="g")) == 0
    assert await dead(mq, Q) == {0: "no" if how == "fail" else "lease expired"}
    assert [(dead_letter.attempts, dead_letter.offset) for dead_letter in await mq.dead_letters(Q)] == [(3, 0)]


async def test_no_retries(mq: AsyncSkep):
    """One delivery, then the dead letter (scenario 44)."""
    q = mq.queue(Q)
    await q.configure(retry_limit=0)
    await q.push_many("ab")
    await (await q.pop(group="g")).fail(None, "no")
    assert [(dead_letter.payload, dead_letter.attempts) for dead_letter in await mq.dead_letters(Q)] == [("a", 1)]
    assert await take(q) == ["b"]


async def test_independent_outcomes(mq: AsyncSkep):
    """One group has completed a message, one retries it, one has dead-lettered it (scenario 45)."""
    q = mq.queue(Q)
    await q.configure(retry_delay=0, retry_limit=1)
    await subscribe(mq, "done", "retrying", "dead")
    receipt = await q.push("x")
    assert await take(q, "done") == ["x"]
    await (await q.pop(group="retrying")).fail(None, "not yet")
    for _ in range(2):
        await (await q.pop(group="dead")).fail(None, "never")
    states = {row.group: (row.state, row.completed) for row in await mq.message_groups(receipt.id)}
    assert states == {"done": ("completed", True), "retrying": ("waiting", False), "dead": ("completed", True)}
    assert await fan_out(mq) == [(3, 2, ["retrying"])]
    assert [(dead_letter.group, dead_letter.attempts) for dead_letter in await mq.dead_letters(Q)] == [("dead", 2)]
    assert [m.attempt for m in await drain(q, "retrying")] == [2]
    assert {group.group: group.dead_letters for group in await mq.groups()} == {"done": 0, "retrying": 0, "dead": 1}


async def test_the_contents_of_a_dead_letter(clients: Callable[..., AsyncSkep]):
    """Payload, headers, correlation, key, group, reason, attempts.

    Also when it fails again after a redrive (scenario 46).
    """
    mq, trace = clients(producer="shop-1"), uuid4()
    q = mq.queue(Q)
    await q.configure(retry_limit=0)
    headers = {"tenant": "eu"}
    await q.push({"n": 1}, partition="customer 7", transaction_id="t", headers=headers, trace_id=trace)
    for error in ("first", "second"):
        batch = await q.pop(group="g")
        await batch.fail(None, ValueError(error))
        (dead_letter,) = await mq.dead_letters(Q)
        assert (dead_letter.payload, dead_letter.group, dead_letter.trace_id, dead_letter.producer) == (
            {"n": 1},
            "g",
            trace,
            "shop-1",
        )
        assert (dead_letter.error, dead_letter.attempts) == (f"ValueError: {error}", 1)
        assert dead_letter.headers is not None
        assert dead_letter.headers["tenant"] == "eu"
        assert dead_letter.partition.startswith("customer 7")
        assert dead_letter.created_at == batch[0].created_at
        await mq.redrive(Q)
    assert (dead_letter.headers or {})["skep-redriven"]["partition"].startswith("customer 7")


async def test_reading_dead_letters(mq: AsyncSkep, ids: list[int]):
    """List, filter, page, one of them, statistics (scenario 47)."""
    newest_first = ids[::-1]
    assert [dead_letter.id for dead_letter in await mq.dead_letters()] == newest_first
    assert [dead_letter.id for dead_letter in await mq.dead_letters(Q, "a", error="ERROR 0")] == [ids[2], ids[0]]
    assert [dead_letter.id for dead_letter in await mq.dead_letters(before=ids[4], limit=2)] == [ids[3], ids[2]]
    (one,) = await mq.dead_letters(before=ids[0] + 1)
    assert (one.id, one.offset, one.group) == (ids[0], 0, "a")
    failed_at = one.failed_at
    assert await mq.dead_letters(failed_before=failed_at) == []
    assert len(await mq.dead_letters(failed_after=failed_at)) == 6
    counts = {(count.group, count.error): count.letters for count in await mq.count_dead_letters(Q)}
    assert counts == {("a", "Error 0"): 2, ("a", "Error 1"): 1, ("b", "Error 0"): 2, ("b", "Error 1"): 1}
    assert (await mq.dead_letters("elsewhere"), await mq.count_dead_letters("elsewhere")) == ([], [])
    assert (await mq.queue(Q).status()).dead_letters == 6


async def test_one_dead_letter(mq: AsyncSkep, ids: list[int]):
    """It is redriven or deleted by its id.

    An unknown id has no effect, an id that is not a number is refused (scenario 47).
    """
    assert [redriven.id for redriven in await mq.redrive(ids=ids[1:2], dry_run=True)] == ids[1:2]
    assert await mq.purge_dead_letters(ids=ids[:1]) == 1
    (redriven,) = await mq.redrive(ids=ids[1:2])
    assert (redriven.group, redriven.queue, redriven.partition) == ("a", Q, "Default")
    assert [(m.id, m.payload) for m in await drain(mq.queue(Q), "a")] == [(redriven.message_id, 1)]
    for gone in (ids[0], ids[1], 10**12):
        assert (await mq.redrive(ids=[gone]), await mq.purge_dead_letters(ids=[gone])) == ([], 0)
    assert (await mq.redrive(ids=[]), await mq.purge_dead_letters(ids=[])) == ([], 0)
    words: Any = ["seven"]
    for verb in (mq.redrive, mq.purge_dead_letters):
        with refused(InvalidArgument):
            await verb(ids=words)
    assert sorted(dead_letter.id for dead_letter in await mq.dead_letters()) == ids[2:]


async def test_concurrent_redrives(clients: Callable[..., AsyncSkep], ids: list[int], db: psycopg.Connection):
    """Each dead letter is redriven once (scenario 47)."""
    clients_at_once = [clients() for _ in range(6)]

    async def redrive_all(mq: AsyncSkep) -> list[int]:
        redriven = []
        while rows := await mq.redrive(limit=2):
            redriven += [row.id for row in rows]
        return redriven

    redriven = await asyncio.gather(*map(redrive_all, clients_at_once))
    assert Counter(number for numbers in redriven for number in numbers) == Counter(ids)
    q = clients_at_once[0].queue(Q)
    assert [payloads(await drain(q, group)) for group in ("a", "b")] == [[0, 1, 2]] * 2
    assert (await lag(q, "a"), broken(db)) == ({"Default": 0, "Default (redriven for a)": 0}, {})


async def test_purge(mq: AsyncSkep, ids: list[int], db: psycopg.Connection):
    """With a dry run, in steps, and with a row in the audit log for each (scenario 47)."""
    assert await mq.purge_dead_letters(Q, "a", dry_run=True) == 3
    assert await mq.purge_dead_letters(Q, "a", error="1", done_by="ann") == 1
    assert [await mq.purge_dead_letters(limit=3) for _ in range(3)] == [3, 2, 0]
    assert await mq.dead_letters() == []
    audit = db.execute("SELECT action, count(*), count(*) FILTER (WHERE done_by = 'ann') FROM skep.dead_letter_audit"
                       " GROUP BY 1").fetchall()  # fmt: skip
    assert audit == [("purged", 6, 1)]


async def test_redrive_with_another_payload(mq: AsyncSkep, ids: list[int]):
    """One dead letter gets a new payload, also null; several cannot."""
    await mq.redrive(ids=ids[:1], payload={"n": 7}, headers={"by": "ann"})
    await mq.redrive(ids=ids[1:2], payload=None)
    first, second = await mq.queue(Q).pop(group="a", batch=10, partitions=10)
    assert (first.payload, second.payload) == ({"n": 7}, None)
    assert first.headers is not None
    assert (first.headers["by"], first.headers["skep-redriven"]["edited"]) == ("ann", True)
    with pytest.raises(InvalidArgument, match="one dead letter"):
        await mq.redrive(Q, payload=1)
