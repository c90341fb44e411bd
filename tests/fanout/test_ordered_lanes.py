"""Section G: ordered lanes. Lanes are leased one by one, so there is nothing to rebalance."""

import asyncio
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import StaleLease
from skep.upkeep.retainer import retain
from tests.client.verbs import LEASE_SECONDS, drain, hold, offsets, payloads, refused, take, until
from tests.engine.verbs import broken, pass_time
from tests.fanout.verbs import AT_ONCE, Q, bury, by_lane, running

Clients = Callable[..., AsyncSkep]


async def cursor(mq: AsyncSkep, group: str = "g", partition: str = "Default") -> int:
    (lane,) = await mq.lag(group, Q, partition)
    return lane.cursor


async def floor(mq: AsyncSkep, queue: str = Q, partition: str = "Default") -> int:
    """Return the first offset that is kept, after retention has run."""
    await retain(mq)
    (found,) = [lane for lane in await mq.queue(queue).lanes() if lane.partition == partition]
    return found.first_offset


async def test_a_cursor_goes_forward_only(mq: AsyncSkep, db: psycopg.Connection):
    """75: it starts once; an answer that came already, or too late, or of no lease at all, is refused."""
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
    """76: a hundred messages in ten cycles: exactly what was not committed comes again, no gap, no repeat, in order."""
    q = mq.queue(Q)
    await q.push_many(range(100))
    done: list[int] = []
    for cycle in range(10):
        (lost,) = await hold(q, 1, batch=10)
        assert offsets(lost) == list(range(10 * cycle, 10 * cycle + 10))
        pass_time(db, LEASE_SECONDS + 1)
        again: list[int] = []
        while len(again) < 10:  # in two halves, to find out which one kills
            again += await take(q, batch=10 - len(again))
        assert again == offsets(lost)
        done += again
    assert done == list(range(100))
    assert await take(q) == []


async def test_keys_and_groups_are_apart(mq: AsyncSkep, db: psycopg.Connection):
    """77: a held lane holds neither another lane nor another group; without a key there is one lane, in line."""
    q = mq.queue(Q)
    await q.push_many([*[NewMessage(n, "a") for n in range(3)], *[NewMessage(n, "b") for n in range(3)], "x", "y"])
    first, second, third = await hold(q, 3, batch=1)
    assert {batch[0].partition for batch in (first, second, third)} == {"a", "b", "Default"}
    assert not await q.pop(group="g")  # each lane is somebody's
    assert by_lane(await drain(q, "other")) == {"a": [0, 1, 2], "b": [0, 1, 2], "Default": [0, 1]}
    for batch in (first, second, third):
        await batch.ack()
    assert by_lane(await drain(q)) == {"a": [1, 2], "b": [1, 2], "Default": [1]}


async def test_different_keys_run_at_once(clients: Clients):
    """77: the handlers of three lanes wait for each other; those of one lane never overlap."""
    mq = clients(poll_interval=0.05)
    inside: Counter[str] = Counter()
    overlaps, met, everyone = [], [], asyncio.Event()

    async def handle(message):
        inside[message.partition] += 1
        overlaps.append(inside[message.partition])
        if len(inside) == 3:
            everyone.set()
        await everyone.wait()
        inside[message.partition] -= 1
        met.append(message.partition)

    await mq.queue(Q).push_many([NewMessage(n, f"lane {n % 3}") for n in range(9)])
    mq.consumer(Q, group="g", batch=1, concurrency=3)(handle)
    async with running(mq):
        await until(lambda: len(met) == 9, "lanes that run at once")
    assert set(overlaps) == {1}


async def test_members_come_and_go(clients: Clients, db: psycopg.Connection):
    """78: the first has all lanes, the second shares, a leaver's come back, and the cursors outlive the last."""
    first, second = clients(), clients()

    async def deal() -> None:
        await first.queue(Q).push_many([NewMessage("x", f"lane {n}") for n in range(6)])

    await deal()
    everything = await first.queue(Q).pop(group="g", batch=6, partitions=6)
    assert by_lane(everything) == {f"lane {n}": [0] for n in range(6)}
    await everything.ack()
    await deal()
    mine, yours = [await member.queue(Q).pop(group="g", batch=3, partitions=3) for member in (first, second)]
    assert set(by_lane(mine)) | set(by_lane(yours)) == {f"lane {n}" for n in range(6)}
    await mine.release()
    await first.close()
    back = await second.queue(Q).pop(group="g", batch=3, partitions=3)
    assert by_lane(back) == by_lane(mine)
    for batch in (yours, back):
        await batch.ack()
    await second.close()
    third = clients()
    await third.queue(Q).push("last", partition="lane 0")
    assert by_lane(await drain(third.queue(Q), partitions=6)) == {"lane 0": [2]}
    assert broken(db) == {}


async def test_twenty_members_come_and_go_at_once(clients: Clients, db: psycopg.Connection):
    """78: every lane has one owner at a time and every message one delivery, whoever joins or leaves."""
    members = [clients(pool_size=2) for _ in range(5)]
    owners: Counter[str] = Counter()
    came: list[int] = []
    await members[0].queue(Q).push_many([NewMessage(n, f"lane {n % 20}") for n in range(400)])

    async def live(number: int) -> None:
        """Join, work a little, leave; four lives share a client."""
        q = members[number % 5].queue(Q)
        for _ in range(3 + number % 3):
            batch = await q.pop(group="g", batch=8, partitions=2)
            lanes = set(by_lane(batch))
            owners.update(lanes)
            assert [lane for lane in lanes if owners[lane] > 1] == []
            owners.subtract(lanes)
            came.extend(payloads(batch))
            await batch.ack()

    await asyncio.gather(*(live(number) for number in range(20)))
    came += payloads(await drain(members[0].queue(Q), partitions=20))
    assert sorted(came) == list(range(400))
    assert broken(db) == {}


async def test_a_zombie(mq: AsyncSkep, db: psycopg.Connection):
    """79: after a takeover the old owner's answers are refused, whatever they are, and change nothing."""
    q = mq.queue(Q)
    await q.push_many(range(4))
    (zombie,) = await hold(q, 1, batch=4)
    pass_time(db, LEASE_SECONDS + 1)
    owner = await q.pop(group="g", batch=4)
    for answer in (zombie.ack, lambda: zombie.fail(None, "late"), zombie.release, zombie.extend):
        with refused(StaleLease):
            await answer()
    await owner.ack()
    assert sorted([*offsets(owner), *offsets(await drain(q))]) == [0, 1, 2, 3]
    assert await mq.dead_letters(Q) == []


async def test_takeovers_under_load(clients: Clients, db: psycopg.Connection):
    """79: members that vanish with what they hold: nothing is lost, and no more comes again than they held."""
    mq = clients()
    await mq.queue(Q).configure(retry_delay=0)
    await mq.queue(Q).push_many([NewMessage(n, f"lane {n % 4}") for n in range(200)])
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
async def test_consuming_in_ones_own_transaction(
    mq: AsyncSkep, db: psycopg.Connection, module_database_url: str, *, commits: bool
):
    """79: the ack and what the application writes commit or roll back as one."""
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
    """80: the least of all groups, the dead left out, never back, the same when asked again, for each queue its own."""
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
    standing = {found.group: found.position for found in await mq.blocked(Q) if found.is_floor}
    assert standing == {"c": 2}
    await bury(mq, db, "c")
    assert [await floor(mq) for _ in range(3)] == [5, 5, 5]
    await mq.seek("b", Q, "beginning")
    assert (await floor(mq), await cursor(mq, "b")) == (5, 5)  # what is gone does not come back
    await mq.heartbeat("c", Q)
    assert await floor(mq) == 5
    for group in ("a", "b", "c"):
        await drain(q, group)
    assert (await floor(mq), await floor(mq, "other")) == (10, 0)
