"""Heartbeats, death and revival of groups (scenarios 49 to 64)."""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import Conflict, DatabaseUnavailable, NotFound
from skep.upkeep import JOBS, Job, Upkeep
from tests.client.verbs import drain, lag, leased, offsets, refused, take, until
from tests.engine.verbs import broken, pass_time
from tests.fanout.groups import (
    AT_ONCE,
    HOUR,
    MORTAL,
    Q,
    died,
    end_waiting_sessions,
    fan_out,
    kept,
    let_die,
    pending,
    statuses,
    subscribe,
)  # fmt: skip

AT_DEATH: Any = AT_ONCE | {"dead_group_grace_seconds": 0}  # no message waits for a dead group
SUSPECT: Any = {"heartbeat_interval": 60, "heartbeat_timeout": 90, "miss_threshold": 3}  # dies at 180 seconds


async def misses(mq: AsyncSkep, queue: str = Q) -> dict[str, int]:
    return {group.group: group.missed_heartbeats for group in await mq.groups(queue=queue)}


@pytest.mark.parametrize(("limit", "passed"), [(300, 0), (300, 299), (1000, 999)])
async def test_within_the_timeout(mq: AsyncSkep, db: psycopg.Connection, limit: int, passed: int):
    """A group within its timeout is never a suspect (scenario 49)."""
    await mq.subscribe("g", Q, heartbeat_timeout=limit, miss_threshold=1)
    pass_time(db, passed)
    assert await mq.detect_dead_groups() == []
    assert await statuses(mq) == {"g": "ACTIVE"}
    counted = "SELECT skep._missed_heartbeats(59.9, 60), skep._missed_heartbeats(60, 60)"
    assert db.execute(counted).fetchall() == [(0, 1)]


async def test_all_expired_groups_and_no_others(mq: AsyncSkep, db: psycopg.Connection):
    """In several queues in one run; dead and cancelled groups and queue mode are skipped (scenario 50)."""
    await subscribe(mq, "first", **MORTAL)
    assert await let_die(mq, db) == ["first"]
    await subscribe(mq, "a", "cancelled", "paused", **MORTAL)
    await subscribe(mq, "b", queue="other", **MORTAL)
    await mq.subscribe("wide", namespace="shop", **MORTAL)
    await subscribe(mq, "healthy")
    await mq.queue(Q).push("x")
    await mq.queue(Q).pop(auto_ack=True)
    await mq.cancel("cancelled", Q)
    await mq.pause("paused", Q)
    pass_time(db, 31)
    found = {(row.group, row.scope, row.died) for row in await mq.detect_dead_groups()}
    assert found == {("a", Q, True), ("b", "other", True), ("wide", "shop.*", True)}
    assert await mq.detect_dead_groups() == []


async def test_missed_heartbeats(mq: AsyncSkep, db: psycopg.Connection):
    """The first does not kill, the third does.

    After a heartbeat the count starts at zero, so they never add up (scenario 51).
    """
    await subscribe(mq, "g", **SUSPECT)
    for _ in range(5):
        pass_time(db, 91)
        (suspect,) = await mq.detect_dead_groups()
        assert (suspect.died, suspect.missed_heartbeats, await misses(mq)) == (False, 1, {"g": 1})
        pass_time(db, 60)
        assert (await died(mq), await misses(mq)) == ([], {"g": 2})
        await mq.heartbeat("g", Q)
        assert (await mq.detect_dead_groups(), await misses(mq)) == ([], {"g": 0})
    pass_time(db, 181)
    assert await died(mq) == ["g"]


async def test_an_outage_loses_no_messages(mq: AsyncSkep, db: psycopg.Connection):
    """The database or all servers were down for an hour: silent groups are dead at once, and keep their backlog."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await subscribe(mq, "early", "late")
    await q.push_many(range(3))
    assert await died(mq) == []
    pass_time(db, HOUR)
    assert await take(q, "early", batch=3) == [0, 1, 2]
    assert (await died(mq), await mq.retain(), await kept(mq)) == (["late"], [], [0, 1, 2])
    assert await statuses(mq) == {"early": "ACTIVE", "late": "DEAD"}
    assert await pending(mq) == [["late"]] * 3
    assert await take(q, "late") == [0, 1, 2]
    assert await statuses(mq) == {"early": "ACTIVE", "late": "ACTIVE"}


async def test_the_grace_period_of_a_dead_group_ends(mq: AsyncSkep, db: psycopg.Connection):
    """It counts from the time of the detection, 7 days by default."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await subscribe(mq, "dead", **MORTAL)
    await q.push_many(range(3))
    await take(q, "other")
    assert await let_die(mq, db) == ["dead"]
    for days, left in ((6.9, [0, 1, 2]), (0.2, [])):
        pass_time(db, days * 24 * HOUR)
        await mq.heartbeat("other", Q)
        await mq.retain()
        assert await kept(mq) == left
    assert broken(db) == {}


async def test_missed_heartbeats_are_counted_for_each_group_and_queue(
    clients: Callable[..., AsyncSkep], db: psycopg.Connection
):
    """They are computed from the clock, so a restarted detector has lost nothing (scenario 52)."""
    mq = clients()
    slow = SUSPECT | {"heartbeat_timeout": 150}
    await subscribe(mq, "g", "h", **slow)
    await subscribe(mq, "g", queue="other", **slow)
    pass_time(db, 91)
    await died(clients())
    await mq.heartbeat("g", "other")
    await mq.heartbeat("h", Q)
    for _ in range(3):
        pass_time(db, 40)
        found = {(row.group, row.queue, row.died) for row in await clients().detect_dead_groups()}
    assert found == {("g", Q, True)}
    assert (await statuses(mq), await statuses(mq, "other")) == ({"g": "DEAD", "h": "ACTIVE"}, {"g": "ACTIVE"})


@pytest.mark.parametrize("heartbeat_by", ["extend", "lease", "ack"])
async def test_health_and_detection_agree(mq: AsyncSkep, db: psycopg.Connection, heartbeat_by: str):
    """A group with a long-running handler is alive in both (scenario 51)."""
    q = mq.queue(Q)
    await q.push("a")
    batch = await q.pop(group="g", lease_time=100_000)
    pass_time(db, 500)
    if heartbeat_by == "extend":
        await batch.extend()
    elif heartbeat_by == "ack":
        await batch.ack()
    assert await misses(mq) == {"g": 0}
    assert await died(mq) == []


async def test_a_paused_group_never_dies(mq: AsyncSkep, db: psycopg.Connection):
    """Its timeout starts again when it is resumed (scenario 53)."""
    await mq.queue(Q).configure(**AT_ONCE)
    await subscribe(mq, "g", **MORTAL)
    await mq.queue(Q).push("a")
    await mq.pause("g", Q)
    for _ in range(3):
        assert (await let_die(mq, db), await misses(mq)) == ([], {"g": 0})
    await mq.resume("g", Q)
    assert await died(mq) == []
    assert (await mq.retain(), await take(mq.queue(Q))) == ([], ["a"])


@pytest.mark.parametrize("heartbeat_by", ["subscribe", "heartbeat", "resume", "pop"])
async def test_ways_to_revive_a_group(mq: AsyncSkep, db: psycopg.Connection, heartbeat_by: str):
    """Each of them revives a dead group, with no missed heartbeats and at its cursor (scenario 54)."""
    q = mq.queue(Q)
    await subscribe(mq, "g", **MORTAL)
    await q.push_many(range(3))
    await take(q, batch=1)
    assert await let_die(mq, db) == ["g"]
    match heartbeat_by:
        case "subscribe":
            assert (await mq.subscribe("g", Q, mode="all")).status == "ACTIVE"
        case "pop":
            await (await q.pop(group="g")).release()
        case _:
            await getattr(mq, heartbeat_by)("g", Q)
    for missed in (0, 1):
        pass_time(db, 9)
        assert (await mq.detect_dead_groups(), await statuses(mq)) == ([], {"g": "ACTIVE"})
        assert await misses(mq) == {"g": missed}
    assert offsets(await drain(q)) == [1, 2]


async def test_the_detection_report(mq: AsyncSkep, db: psycopg.Connection):
    """Group, last heartbeat, overdue time; number of groups, and duration (scenario 55)."""
    await subscribe(mq, "healthy")
    await subscribe(mq, "late", **MORTAL | {"miss_threshold": 3})
    await subscribe(mq, "dead", **MORTAL)
    pass_time(db, 25)
    seen = {s.group: s.last_heartbeat_at for s in await mq.subscriptions()}
    report = {row.group: row for row in await mq.detect_dead_groups()}
    assert {group: (row.queue, row.died, row.missed_heartbeats) for group, row in report.items()} == {
        "late": (Q, False, 2), "dead": (Q, True, 2),
    }  # fmt: skip
    for group, row in report.items():
        assert row.last_heartbeat_at == seen[group]
        assert 5 <= row.overdue_seconds < 15
    assert len(await mq.groups()) == 3
    pass_time(db, 100)
    upkeep = Upkeep(mq, JOBS)
    assert (await upkeep.run_once())["detection"] == f"dead: late on {Q}"
    assert (upkeep.health["detection"].runs, upkeep.health["detection"].seconds > 0) == (1, True)


@pytest.mark.parametrize(("grace", "waits"), [(0, False), (60, True)])
async def test_the_backlog_of_dead_groups(mq: AsyncSkep, db: psycopg.Connection, grace: float, *, waits: bool):
    """Pending, leased, and the age of the oldest message, for each dead group.

    Whether retention still waits for it (scenario 56).
    """
    q = mq.queue(Q)
    await q.configure(dead_group_grace_seconds=grace)
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "done", "behind")
    await q.push_many(range(5))
    oldest = (await mq.message_status(Q, "Default"))[1].created_at
    await take(q, "dead", batch=1)
    await take(q, "done")
    await take(q, "behind", batch=3)
    await q.pop(group="behind")
    assert await let_die(mq, db) == ["dead"]
    rows = {row.group: (row.status, row.pending, row.leased, row.is_floor) for row in await mq.pending_groups(Q)}
    assert rows == {"dead": ("DEAD", 4, 0, waits), "behind": ("ACTIVE", 2, 1, not waits)}
    (row,) = [row for row in await mq.pending_groups() if row.status == "DEAD"]
    assert row.oldest_pending_at is not None
    assert 30 < (oldest - row.oldest_pending_at).total_seconds() < 32  # half a minute has passed since


async def test_death_unblocks(mq: AsyncSkep, db: psycopg.Connection):
    """Messages that all others have finished are finished at once.

    The others stay pending for their groups (scenario 57).
    """
    q = mq.queue(Q)
    await q.configure(**AT_DEATH)
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "other")
    await q.push_many(range(4))
    await take(q, "other", batch=3)
    assert await mq.retain() == []
    await let_die(mq, db)
    assert await fan_out(mq) == [(1, 1, [])] * 3 + [(1, 0, ["other"])]
    assert [(row.end_offset, row.missed) for row in await mq.retain()] == [(3, 3)]
    assert (await kept(mq), await take(q, "other")) == ([3], [3])


async def test_a_group_that_was_half_done(mq: AsyncSkep, db: psycopg.Connection):
    """Only messages that it had not finished are released; its completed ones stay on record (scenario 58)."""
    q = mq.queue(Q)
    await q.configure(dead_group_grace_seconds=0)
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "other")
    await q.push_many(range(4))
    await take(q, "dead", batch=2)
    await let_die(mq, db)
    assert await fan_out(mq) == [(2, 1, ["other"])] * 2 + [(1, 0, ["other"])] * 2
    states = [(await mq.message_groups(row.id))[0].state for row in await mq.message_status(Q, "Default")]
    assert states == ["completed", "completed", "released", "released"]
    (status,) = await mq.groups("dead")
    assert (status.processed, status.lag) == (2, 2)


async def test_cleanup_never_counts_below_zero(mq: AsyncSkep, db: psycopg.Connection):
    """However often it runs; once the last pending group is gone, the message is finished (scenario 59)."""
    q = mq.queue(Q)
    await q.configure(zero_subscriber_retention_seconds=HOUR, **AT_DEATH)
    await subscribe(mq, "a", **MORTAL)
    await subscribe(mq, "b")
    await q.push_many(range(2))
    await let_die(mq, db)
    for _ in range(5):
        assert await mq.detect_dead_groups() == []
        assert await fan_out(mq) == [(1, 0, ["b"])] * 2
    await mq.cancel_group("b", Q)
    assert await fan_out(mq) == [(0, 0, [])] * 2
    assert await mq.retain() == []  # no group: kept for as long as such messages are
    pass_time(db, HOUR)
    assert [row.messages for row in await mq.retain()] == [2]
    assert broken(db) == {}


async def test_messages_older_than_the_dead_groups_subscription(mq: AsyncSkep, db: psycopg.Connection):
    """The group was never pending for them, so its death changes nothing there, and it misses none of them.

    Scenario 60.
    """
    q = mq.queue(Q)
    await q.configure(**AT_DEATH)
    await subscribe(mq, "early")
    await q.push_many(range(2))
    pass_time(db, 60)
    await mq.heartbeat("early", Q)
    await subscribe(mq, "late", mode="new", **MORTAL)
    await q.push(2)
    before = await fan_out(mq)
    assert before == [(1, 0, ["early"])] * 2 + [(2, 0, ["early", "late"])]
    await let_die(mq, db)
    assert await fan_out(mq) == [(1, 0, ["early"])] * 3
    await drain(q, "early")
    await mq.retain()
    assert {group.group: group.missed for group in await mq.groups()} == {"early": 0, "late": 1}


async def test_one_of_many_dead_groups_fails(mq: AsyncSkep, db: psycopg.Connection, module_database_url: str):
    """A group that cannot be checked now is checked next time.

    A failure is reported, and earlier work stays (scenario 61).
    """
    await subscribe(mq, "a", "b", "c", **MORTAL)
    pass_time(db, 31)
    with psycopg.connect(module_database_url) as other:
        other.execute("SELECT FROM skep.subscriptions WHERE group_name = 'b' FOR UPDATE")
        assert await died(mq) == ["a", "c"]

    async def fail(_: AsyncSkep) -> None:
        raise DatabaseUnavailable("gone")

    upkeep = Upkeep(mq, [*JOBS, Job("last", 1, fail)])
    done = await upkeep.run_once()
    assert (done["detection"], done["last"], upkeep.healthy) == (f"dead: b on {Q}", "gone", False)
    assert set((await statuses(mq)).values()) == {"DEAD"}


async def test_from_death_to_cleanup(mq: AsyncSkep, db: psycopg.Connection):
    """Detect, clean up, and the others complete, all by itself.

    Runs never overlap, and none begins after stop (scenario 62).
    """
    q = mq.queue(Q)
    await q.configure(**AT_DEATH)
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "other")
    await q.push_many(range(3))
    at_work = most = 0

    def counted(job: Job) -> Job:
        async def run(mq: AsyncSkep) -> str | None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            try:
                return await job.run(mq)
            finally:
                at_work -= 1

        return Job(job.name, 0.01, run)

    upkeep = Upkeep(mq, [counted(job) for job in JOBS])
    running = asyncio.create_task(upkeep.run())
    await take(q, "other", batch=2)
    assert await kept(mq) == [0, 1, 2]
    pass_time(db, 31)

    async def only_the_last_is_left() -> bool:
        return await kept(mq) == [2]

    await until(only_the_last_is_left, "death and cleanup")
    assert (await statuses(mq))["dead"] == "DEAD"
    assert await take(q, "other") == [2]
    upkeep.stop()
    await running
    runs = {name: health.runs for name, health in upkeep.health.items()}
    assert (at_work, most <= len(JOBS), upkeep.healthy) == (0, True, True)
    await upkeep.run()  # no run begins after stop
    assert {name: health.runs for name, health in upkeep.health.items()} == runs


async def test_a_heartbeat_revives(mq: AsyncSkep, db: psycopg.Connection):
    """The group is pending again for what is left.

    For an active or paused group only the time changes (scenario 63).
    """
    q = mq.queue(Q)
    await q.configure(**AT_DEATH)
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "active", "paused")
    await mq.pause("paused", Q)
    await q.push_many(range(4))
    await take(q, "dead", batch=1)
    await let_die(mq, db)
    assert await pending(mq) == [["active", "paused"]] * 4
    ((before, after),) = [
        (s, t) for s, t in zip(await mq.subscriptions("dead"), await mq.heartbeat("dead", Q), strict=True)
    ]
    assert (before.status, after.status, after.last_heartbeat_at > before.last_heartbeat_at) == ("DEAD", "ACTIVE", True)
    expected = [["active", "paused"], *[["active", "dead", "paused"]] * 3]
    assert await pending(mq) == expected
    for group, status in (("active", "ACTIVE"), ("paused", "PAUSED")):
        (now,) = await mq.heartbeat(group, Q)
        assert (now.status, await pending(mq)) == (status, expected)
    assert offsets(await drain(q, "dead")) == [1, 2, 3]
    assert len(await q.pop(group="paused")) == 0


async def test_a_revival_that_fails(
    clients: Callable[..., AsyncSkep], mq: AsyncSkep, db: psycopg.Connection, module_database_url: str
):
    """The caller gets the error, and the group stays dead (scenario 63)."""
    await subscribe(mq, "g", **MORTAL)
    await let_die(mq, db)
    other_client = clients()
    await other_client.queues()
    with psycopg.connect(module_database_url) as other:
        other.execute("SELECT FROM skep.subscriptions FOR UPDATE")
        heartbeat_task = asyncio.create_task(other_client.heartbeat("g", Q))
        await until(lambda: end_waiting_sessions(db), "the heartbeat to wait")
        with refused(DatabaseUnavailable):
            await heartbeat_task
    assert await statuses(mq) == {"g": "DEAD"}
    assert [s.status for s in await mq.heartbeat("g", Q)] == ["ACTIVE"]


@pytest.mark.parametrize("state", ["active", "paused", "dead"])
async def test_force_remove(mq: AsyncSkep, db: psycopg.Connection, state: str):
    """Cancelled, with the number of messages that no longer wait.

    Unknown is not found, twice is a conflict (scenario 64).
    """
    q = mq.queue(Q)
    options: Any = MORTAL if state == "dead" else {}
    await subscribe(mq, "g", **options)
    await q.push_many(range(4))
    await take(q, batch=1)
    if state == "paused":
        await mq.pause("g", Q)
    elif state == "dead":
        await let_die(mq, db)
    else:
        await q.pop(group="g")
    assert (await lag(q), await mq.cancel_group("g", Q)) == ({"Default": 3}, 3)
    assert (await statuses(mq), leased(db), await pending(mq)) == ({"g": "CANCELLED"}, 0, [[]] * 4)
    with refused(Conflict, "cancelled"):
        await mq.cancel_group("g", Q)
    with refused(NotFound, "nobody"):
        await mq.cancel_group("nobody", Q)
    assert broken(db) == {}
