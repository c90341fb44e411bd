"""D. Retry and dead letters, group by group (42 to 47; 48 is in test_upkeep.py)."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import InvalidArgument
from skep.upkeep import DUTIES, Upkeep
from tests.client.verbs import LEASE_SECONDS, dead, drain, lag, payloads, refused, take
from tests.engine.verbs import broken, pass_time
from tests.fanout.watching import Q, fan_out, subscribe


@pytest.fixture
async def letters(mq: AsyncSkep) -> list[int]:
    """Two groups have given up messages 0 to 2, with two kinds of error. Returns the ids, oldest first."""
    q = mq.queue(Q)
    await q.configure(retry_limit=0)
    await q.push_many(range(3))
    for group in ("a", "b"):
        batch = await q.pop(group=group, batch=3)
        for message in batch:
            await batch.fail(message, f"Error {message.offset % 2}")
    return sorted(letter.id for letter in await mq.dead_letters(Q))


async def test_below_the_limit(mq: AsyncSkep):
    """42: comes again with its attempts; what is completed does not; nothing to do is nothing done."""
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
async def test_at_the_limit(mq: AsyncSkep, db: psycopg.Connection, how: str):
    """43: to the dead letters once, however often and by how many it is looked for."""
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
            await asyncio.gather(*(mq.reap() for _ in range(4)))
    for _ in range(3):
        await Upkeep(mq, DUTIES).run_once()
        assert len(await q.pop(group="g")) == 0
    assert await dead(mq, Q) == {0: "no" if how == "fail" else "lease expired"}
    assert [(letter.attempts, letter.offset) for letter in await mq.dead_letters(Q)] == [(3, 0)]


async def test_no_retries(mq: AsyncSkep):
    """44: one delivery, and straight to the dead letters."""
    q = mq.queue(Q)
    await q.configure(retry_limit=0)
    await q.push_many("ab")
    await (await q.pop(group="g")).fail(None, "no")
    assert [(letter.payload, letter.attempts) for letter in await mq.dead_letters(Q)] == [("a", 1)]
    assert await take(q) == ["b"]


async def test_independent_outcomes(mq: AsyncSkep):
    """45: one group is done with a message, one tries again, one has given it up."""
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
    assert [(letter.group, letter.attempts) for letter in await mq.dead_letters(Q)] == [("dead", 2)]
    assert [m.attempt for m in await drain(q, "retrying")] == [2]
    assert {group.group: group.dead_letters for group in await mq.groups()} == {"done": 0, "retrying": 0, "dead": 1}


async def test_what_a_dead_letter_carries(clients: Callable[..., AsyncSkep]):
    """46: payload, headers, correlation, key, group, reason, attempts; also when it fails again after a redrive."""
    mq, trace = clients(producer="shop-1"), uuid4()
    q = mq.queue(Q)
    await q.configure(retry_limit=0)
    headers = {"tenant": "eu"}
    await q.push({"n": 1}, partition="customer 7", transaction_id="t", headers=headers, trace_id=trace)
    for error in ("first", "second"):
        batch = await q.pop(group="g")
        await batch.fail(None, ValueError(error))
        (letter,) = await mq.dead_letters(Q)
        assert (letter.payload, letter.group, letter.trace_id, letter.producer) == ({"n": 1}, "g", trace, "shop-1")
        assert (letter.error, letter.attempts) == (f"ValueError: {error}", 1)
        assert letter.headers is not None
        assert letter.headers["tenant"] == "eu"
        assert letter.partition.startswith("customer 7")
        assert letter.created_at == batch[0].created_at
        await mq.redrive(Q)
    assert (letter.headers or {})["skep-redriven"]["partition"].startswith("customer 7")


async def test_looking_at_dead_letters(mq: AsyncSkep, letters: list[int]):
    """47: list, filter, page, one of them, statistics."""
    newest_first = letters[::-1]
    assert [letter.id for letter in await mq.dead_letters()] == newest_first
    assert [letter.id for letter in await mq.dead_letters(Q, "a", error="ERROR 0")] == [letters[2], letters[0]]
    assert [letter.id for letter in await mq.dead_letters(before=letters[4], limit=2)] == [letters[3], letters[2]]
    (one,) = await mq.dead_letters(before=letters[0] + 1)
    assert (one.id, one.offset, one.group) == (letters[0], 0, "a")
    failed_at = one.failed_at
    assert await mq.dead_letters(failed_before=failed_at) == []
    assert len(await mq.dead_letters(failed_after=failed_at)) == 6
    counts = {(count.group, count.error): count.letters for count in await mq.count_dead_letters(Q)}
    assert counts == {("a", "Error 0"): 2, ("a", "Error 1"): 1, ("b", "Error 0"): 2, ("b", "Error 1"): 1}
    assert (await mq.dead_letters("elsewhere"), await mq.count_dead_letters("elsewhere")) == ([], [])
    assert (await mq.queue(Q).status()).dead_letters == 6


async def test_one_of_them(mq: AsyncSkep, letters: list[int]):
    """47: driven again or deleted by its id; an unknown id is nothing, one that is no number is refused."""
    assert [driven.id for driven in await mq.redrive(ids=letters[1:2], dry_run=True)] == letters[1:2]
    assert await mq.purge_dead_letters(ids=letters[:1]) == 1
    (driven,) = await mq.redrive(ids=letters[1:2])
    assert (driven.group, driven.queue, driven.partition) == ("a", Q, "Default")
    assert [(m.id, m.payload) for m in await drain(mq.queue(Q), "a")] == [(driven.message_id, 1)]
    for gone in (letters[0], letters[1], 10**12):
        assert (await mq.redrive(ids=[gone]), await mq.purge_dead_letters(ids=[gone])) == ([], 0)
    assert (await mq.redrive(ids=[]), await mq.purge_dead_letters(ids=[])) == ([], 0)
    words: Any = ["seven"]
    for verb in (mq.redrive, mq.purge_dead_letters):
        with refused(InvalidArgument):
            await verb(ids=words)
    assert sorted(letter.id for letter in await mq.dead_letters()) == letters[2:]


async def test_many_drive_at_once(clients: Callable[..., AsyncSkep], letters: list[int], db: psycopg.Connection):
    """47: each letter once."""
    drivers = [clients() for _ in range(6)]

    async def drive(mq: AsyncSkep) -> list[int]:
        driven = []
        while rows := await mq.redrive(limit=2):
            driven += [row.id for row in rows]
        return driven

    driven = await asyncio.gather(*map(drive, drivers))
    assert Counter(number for numbers in driven for number in numbers) == Counter(letters)
    q = drivers[0].queue(Q)
    assert [payloads(await drain(q, group)) for group in ("a", "b")] == [[0, 1, 2]] * 2
    assert (await lag(q, "a"), broken(db)) == ({"Default": 0, "Default (redriven for a)": 0}, {})


async def test_purge(mq: AsyncSkep, letters: list[int], db: psycopg.Connection):
    """47: with a dry run, in steps, and with a line in the audit for each."""
    assert await mq.purge_dead_letters(Q, "a", dry_run=True) == 3
    assert await mq.purge_dead_letters(Q, "a", error="1", done_by="ann") == 1
    assert [await mq.purge_dead_letters(limit=3) for _ in range(3)] == [3, 2, 0]
    assert await mq.dead_letters() == []
    audit = db.execute("SELECT action, count(*), count(*) FILTER (WHERE done_by = 'ann') FROM skep.dead_letter_audit"
                       " GROUP BY 1").fetchall()  # fmt: skip
    assert audit == [("purged", 6, 1)]


async def test_with_another_payload(mq: AsyncSkep, letters: list[int]):
    """One letter gets a new payload, also null; for several there is none."""
    await mq.redrive(ids=letters[:1], payload={"n": 7}, headers={"by": "ann"})
    await mq.redrive(ids=letters[1:2], payload=None)
    first, second = await mq.queue(Q).pop(group="a", batch=10, partitions=10)
    assert (first.payload, second.payload) == ({"n": 7}, None)
    assert first.headers is not None
    assert (first.headers["by"], first.headers["skep-redriven"]["edited"]) == ("ann", True)
    with pytest.raises(InvalidArgument, match="one dead letter"):
        await mq.redrive(Q, payload=1)
