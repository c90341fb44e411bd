"""Ordered partitions (section G). Partitions are leased one by one, so there is nothing to rebalance."""

import asyncio
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import StaleLease
from skep.upkeep import retain
from tests.client.verbs import LEASE_SECONDS, drain, hold, offsets, payloads, refused, take, until
from tests.engine.verbs import broken, pass_time
from tests.fanout.verbs import AT_ONCE, Q, by_partition, let_die, running

Clients = Callable[..., AsyncSkep]


async def cursor(mq: AsyncSkep, group: str = "g", partition: str = "Default") -> int:
    (row,) = await mq.lag(group, Q, partition)
    return row.cursor


async def floor(mq: AsyncSkep, queue: str = Q, partition: str = "Default") -> int:
    """Return the first offset that is kept, after retention has run."""
    await retain(mq)
    (found,) = [row for row in await mq.queue(queue).partitions() if row.partition == partition]
    return found.first_offset


async def test_a_cursor_goes_forward_only(mq: AsyncSkep, db: psycopg.Connection):
    """It starts once; an ack that is repeated, too late, or without a lease is refused (scenario 75)."""
    q = mq.queue(Q)
    await q.push_many(range(6))
    await mq.subscribe("g", Q, start_from=2)
    await mq.subscribe("g", Q, start_from=0)
    assert await cursor(mq) == 2
    (first,) = await hold(q, 1, batch=2)
    await first.ack()
    assert await cursor(mq) == 4
    with refused(StaleLease):
        await first.extend()
    (late,) = await hold(q, 1, batch=1)
    pass_time(db, LEASE_SECONDS + 1)
    assert await take(q, batch=1) == [4]
    with refused(StaleLease):
        await late.ack()
    assert await cursor(mq) == 5
    with pytest.raises(psycopg.Error, match="has ended"):
        db.execute("SELECT skep.ack(%s)", [uuid4()])
    assert await cursor(mq) == 5


async def test_crashes_before_the_commit(mq: AsyncSkep, db: psycopg.Connection):
    """A hundred messages in ten cycles: exactly the uncommitted ones are delivered again, no gap, no repeat, in order.

    Scenario 76.
    """
    q = mq.queue(Q)
    await q.push_many(range(100))
    done: list[int] = []
    for cycle in range(10):
        (lost,) = await hold(q, 1, batch=10)
        assert offsets(lost) == list(range(10 * cycle, 10 * cycle + 10))
        pass_time(db, LEASE_SECONDS + 1)
        again: list[int] = []
        while len(again) < 10:  # in two halves, to find out which one crashes
            again += await take(q, batch=10 - len(again))
        assert again == offsets(lost)
        done += again
    assert done == list(range(100))
    assert await take(q) == []


async def test_keys_and_groups_are_isolated(mq: AsyncSkep, db: psycopg.Connection):
    """A leased partition blocks neither another partition nor another group.

    Without a key there is one partition (scenario 77).
    """
    q = mq.queue(Q)
    await q.push_many([*[NewMessage(n, "a") for n in range(3)], *[NewMessage(n, "b") for n in range(3)], "x", "y"])
    first, second, third = await hold(q, 3, batch=1)
    assert {batch[0].partition for batch in (first, second, third)} == {"a", "b", "Default"}
    assert not await q.pop(group="g")  # each partition is leased
    assert by_partition(await drain(q, "other")) == {"a": [0, 1, 2], "b": [0, 1, 2], "Default": [0, 1]}
    for batch in (first, second, third):
        await batch.ack()
    assert by_partition(await drain(q)) == {"a": [1, 2], "b": [1, 2], "Default": [1]}


async def test_different_keys_run_at_once(clients: Clients):
    """The handlers of three partitions wait for each other; those of one partition never overlap (scenario 77)."""
    mq = clients(poll_interval=0.05)
    inside: Counter[str] = Counter()
    overlaps, known, everyone = [], [], asyncio.Event()

    async def handle(message):
        inside[message.partition] += 1
        overlaps.append(inside[message.partition])
        if len(inside) == 3:
            everyone.set()
        await everyone.wait()
        inside[message.partition] -= 1
        known.append(message.partition)

    await mq.queue(Q).push_many([NewMessage(n, f"partition {n % 3}") for n in range(9)])
    mq.consumer(Q, group="g", batch=1, concurrency=3)(handle)
    async with running(mq):
        await until(lambda: len(known) == 9, "partitions that run at once")
    assert set(overlaps) == {1}


async def test_members_join_and_leave(clients: Clients, db: psycopg.Connection):
    """The first has all partitions, the second shares, a leaver's are released, and the cursors stay after the last.

    Scenario 78.
    """
    first, second = clients(), clients()

    async def lease_all() -> None:
        await first.queue(Q).push_many([NewMessage("x", f"partition {n}") for n in range(6)])

    await lease_all()
    everything = await first.queue(Q).pop(group="g", batch=6, partitions=6)
    assert by_partition(everything) == {f"partition {n}": [0] for n in range(6)}
    await everything.ack()
    await lease_all()
    mine, yours = [await member.queue(Q).pop(group="g", batch=3, partitions=3) for member in (first, second)]
    assert set(by_partition(mine)) | set(by_partition(yours)) == {f"partition {n}" for n in range(6)}
    await mine.release()
    await first.close()
    back = await second.queue(Q).pop(group="g", batch=3, partitions=3)
    assert by_partition(back) == by_partition(mine)
    for batch in (yours, back):
        await batch.ack()
    await second.close()
    third = clients()
    await third.queue(Q).push("last", partition="partition 0")
    assert by_partition(await drain(third.queue(Q), partitions=6)) == {"partition 0": [2]}
    assert broken(db) == {}


async def test_twenty_members_join_and_leave_at_once(clients: Clients, db: psycopg.Connection):
    """Every partition has one owner at a time and every message one delivery, whichever members join or leave.

    Scenario 78.
    """
    members = [clients(pool_size=2) for _ in range(5)]
    owners: Counter[str] = Counter()
    came: list[int] = []
    await members[0].queue(Q).push_many([NewMessage(n, f"partition {n % 20}") for n in range(400)])

    async def live(number: int) -> None:
        """Join, work a little, leave; four members share a client."""
        q = members[number % 5].queue(Q)
        for _ in range(3 + number % 3):
            batch = await q.pop(group="g", batch=8, partitions=2)
            partitions = set(by_partition(batch))
            owners.update(partitions)
            assert [partition for partition in partitions if owners[partition] > 1] == []
            owners.subtract(partitions)
            came.extend(payloads(batch))
            await batch.ack()

    await asyncio.gather(*(live(number) for number in range(20)))
    came += payloads(await drain(members[0].queue(Q), partitions=20))
    assert sorted(came) == list(range(400))
    assert broken(db) == {}


async def test_a_zombie(mq: AsyncSkep, db: psycopg.Connection):
    """After a takeover the old owner's acks are refused and change nothing (scenario 79)."""
    q = mq.queue(Q)
    await q.push_many(range(4))
    (zombie,) = await hold(q, 1, batch=4)
    pass_time(db, LEASE_SECONDS + 1)
    owner = await q.pop(group="g", batch=4)
    for call in (zombie.ack, lambda: zombie.fail(None, "late"), zombie.release, zombie.extend):
        with refused(StaleLease):
            await call()
    await owner.ack()
    assert sorted([*offsets(owner), *offsets(await drain(q))]) == [0, 1, 2, 3]
    assert await mq.dead_letters(Q) == []


async def test_takeovers_under_load(clients: Clients, db: psycopg.Connection):
    """Members disappear with their leases: nothing is lost, and no more is delivered again than they had leased.

    Scenario 79.
    """
    mq = clients()
    await mq.queue(Q).configure(retry_delay=0)
    await mq.queue(Q).push_many([NewMessage(n, f"partition {n % 4}") for n in range(200)])
    came: list[int] = []
    vanished: list[int] = []
    while len(came) - len(vanished) < 200:
        batch = await mq.queue(Q).pop(group="g", batch=10, partitions=2)
        came += payloads(batch)
        if len(vanished) < 50 and batch:
            vanished += payloads(batch)
            pass_time(db, LEASE_SECONDS + 1)
        else:
            await batch.ack()
    assert Counter(came) - Counter(range(200)) == Counter(vanished)
    assert await take(mq.queue(Q)) == []


@pytest.mark.parametrize("commits", [True, False])
async def test_consume_in_the_transaction_of_the_application(
    mq: AsyncSkep, db: psycopg.Connection, module_database_url: str, *, commits: bool
):
    """The ack and the application's writes commit or roll back together (scenario 79)."""
    db.execute("CREATE TABLE IF NOT EXISTS effects (n integer)")
    db.execute("TRUNCATE effects")
    await mq.queue(Q).push(7)
    (batch,) = await hold(mq.queue(Q), 1)
    with psycopg.connect(module_database_url) as own:
        own.execute("INSERT INTO effects VALUES (%s)", [batch[0].payload])
        own.execute("SELECT skep.ack(%s)", [batch.lease])
        (own.commit if commits else own.rollback)()
    pass_time(db, LEASE_SECONDS + 1)
    assert db.execute("SELECT n FROM effects").fetchall() == ([(7,)] if commits else [])
    assert await take(mq.queue(Q)) == ([] if commits else [7])


async def test_the_watermark(mq: AsyncSkep, db: psycopg.Connection):
    """The lowest cursor of all groups except dead ones.

    It never goes back, is idempotent, and is kept per queue (scenario 80).
    """
    q = mq.queue(Q)
    for name in (Q, "other"):
        await mq.queue(name).configure(**AT_ONCE, dead_group_grace_seconds=0)
        await mq.queue(name).push_many(range(10))
    assert (await floor(mq), await floor(mq, "other")) == (0, 0)  # no group: nothing is done
    for group, position in (("a", 8), ("b", 5), ("c", 2)):
        await mq.subscribe(group, Q)
        await take(q, group, batch=position)
    await mq.subscribe("a", "other")
    assert [await floor(mq) for _ in range(3)] == [2, 2, 2]
    member_states = {found.group: found.position for found in await mq.pending_groups(Q) if found.is_floor}
    assert member_states == {"c": 2}
    await let_die(mq, db, "c")
    assert [await floor(mq) for _ in range(3)] == [5, 5, 5]
    await mq.seek("b", Q, "beginning")
    assert (await floor(mq), await cursor(mq, "b")) == (5, 5)  # deleted messages do not return
    await mq.heartbeat("c", Q)
    assert await floor(mq) == 5
    for group in ("a", "b", "c"):
        await drain(q, group)
    assert (await floor(mq), await floor(mq, "other")) == (10, 0)
