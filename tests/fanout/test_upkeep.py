"""Upkeep: each job does its work; a failure, a second server or a crash has no other effect."""

import asyncio
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest

from skep import AsyncSkep
from skep.config import INTERVALS, Config
from skep.errors import DatabaseUnavailable, InvalidArgument
from skep.upkeep import JOBS, Job, Upkeep, intervals
from tests.client.verbs import LEASE_SECONDS, leased, take, until
from tests.engine.verbs import broken, pass_time
from tests.fanout.groups import AT_ONCE, HOUR, MORTAL, Q, end_waiting_sessions, kept, statuses, subscribe

BY_NAME = {job.name: job for job in JOBS}


async def run(mq: AsyncSkep, name: str) -> str | None:
    return (await Upkeep(mq, [BY_NAME[name]]).run_once())[name]


def count(db: psycopg.Connection, table: LiteralString) -> int:
    return db.execute(f"SELECT count(*) FROM skep.{table}").fetchall()[0][0]


async def test_the_reaper(mq: AsyncSkep, db: psycopg.Connection):
    """It returns the leases of crashed consumers (scenario 35)."""
    await mq.queue(Q).push("a")
    await mq.queue(Q).pop(group="g")
    await run(mq, "lease_expiry")
    assert leased(db) == 1
    pass_time(db, LEASE_SECONDS + 1)
    await run(mq, "lease_expiry")
    assert leased(db) == 0


async def test_the_watch(mq: AsyncSkep, db: psycopg.Connection):
    """It declares groups dead, and names them (scenario 62)."""
    await subscribe(mq, "g", **MORTAL)
    await mq.subscribe("wide", task="mail", **MORTAL)
    assert await run(mq, "detection") is None
    pass_time(db, 31)
    assert await run(mq, "detection") == f"dead: g on {Q}, wide on *.mail"
    assert await run(mq, "detection") is None


async def test_the_retainer(mq: AsyncSkep, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch):
    """Page by page and step by step, until nothing is left to delete; then idle partitions (scenario 62)."""
    monkeypatch.setattr("skep.client.aio.upkeep.PARTITIONS", 2)
    monkeypatch.setattr("skep.client.aio.upkeep.MESSAGES", 3)
    q = mq.queue(Q)
    await q.configure(drop_idle_seconds=HOUR, max_size=1, **AT_ONCE)
    await subscribe(mq, "idle")
    for partition in range(5):
        for number in range(8):
            await q.push(number, partition=str(partition))
    assert await run(mq, "retention") == "deleted 35 messages (35 were missed by a group), dropped 0 idle partitions"
    await mq.cancel("idle", Q)
    await take(q, partitions=5)
    pass_time(db, HOUR + 1)
    assert await run(mq, "retention") == "deleted 5 messages (0 were missed by a group), dropped 5 idle partitions"
    assert await run(mq, "retention") is None
    assert (await q.partitions(), broken(db)) == ([], {})


async def test_the_sampler_and_the_pruner(mq: AsyncSkep, db: psycopg.Connection):
    """Samples are written, and pruned (scenario 48)."""
    await mq.queue(Q).push_many(range(3))
    await take(mq.queue(Q))
    await run(mq, "sampling")
    assert [(sample.lag, sample.dead) for sample in await mq.history(Q, "g")] == [(0, 0)]
    assert (await run(mq, "pruning"), count(db, "journal")) == (None, 1)
    pass_time(db, 8 * 24 * HOUR)
    assert await run(mq, "pruning") == "pruned 1 journal rows, 2 samples, 0 traces and the log of 0 leases"
    assert (count(db, "journal"), count(db, "samples")) == (0, 0)
    await mq.queue(Q).push(3)
    assert await take(mq.queue(Q)) == [3]


async def test_only_the_selected_jobs_run(mq: AsyncSkep, db: psycopg.Connection):
    """A job that is left out does not run; the others do (scenario 48)."""
    await subscribe(mq, "g", **MORTAL)
    pass_time(db, 31)
    upkeep = Upkeep(mq, [job for job in JOBS if job.name != "detection"])
    await upkeep.run_once()
    assert ("detection" in upkeep.health, await statuses(mq)) == (False, {"g": "ACTIVE"})


def test_every_job_has_an_interval_setting():
    """With the same default, so that a job runs as often without settings as with them."""
    assert set(INTERVALS) == {job.setting for job in JOBS if job.setting is not None}
    assert intervals(Config()) == {job.name: job.every for job in JOBS if job.setting is not None}


async def test_intervals(mq: AsyncSkep):
    upkeep = Upkeep(mq, JOBS, {"detection": 2, "sampling": 86_400})
    assert {name: health.every for name, health in upkeep.health.items()} == {
        **{job.name: job.every for job in JOBS},
        "detection": 2,
        "sampling": 86_400,
    }
    with pytest.raises(InvalidArgument, match='there is no job "nobody"'):
        Upkeep(mq, JOBS, {"nobody": 5})
    for wrong in (0, 0.01, 86_401, float("nan")):
        with pytest.raises(InvalidArgument, match=f"between 0.1 and 86400 seconds, got {wrong}"):
            Upkeep(mq, JOBS, {"detection": wrong})


async def test_stop_waits_for_the_run_in_flight(mq: AsyncSkep):
    """It ends by itself, and no other begins (scenario 48)."""
    begun, go_on, runs = asyncio.Event(), asyncio.Event(), []

    async def slow(_: AsyncSkep) -> None:
        begun.set()
        await go_on.wait()
        runs.append("slow")

    upkeep = Upkeep(mq, [Job("slow", 0.001, slow), Job("rare", 1000, BY_NAME["lease_expiry"].run)])
    running = asyncio.create_task(upkeep.run())
    await begun.wait()
    await until(lambda: upkeep.health["rare"].runs == 1, "the other to rest")
    upkeep.stop()
    upkeep.stop()
    await asyncio.wait([running], timeout=0.05)
    assert not running.done()
    go_on.set()
    await running
    assert (runs, upkeep.health["slow"].runs, upkeep.health["rare"].runs) == (["slow"], 1, 1)


@pytest.mark.parametrize("error", [DatabaseUnavailable("gone"), psycopg.OperationalError("cut"), KeyError("mistake")])
async def test_a_failing_job(mq: AsyncSkep, error: Exception):
    """It degrades the health until it succeeds; the other jobs continue, and it is retried (scenario 48)."""
    trouble: list[Exception] = [error]

    async def shaky(_: AsyncSkep) -> str:
        if trouble:
            raise trouble[0]
        return "done"

    upkeep = Upkeep(mq, [Job("shaky", 0.01, shaky), Job("steady", 0.01, BY_NAME["lease_expiry"].run)])
    assert upkeep.healthy
    running = asyncio.create_task(upkeep.run())
    await until(lambda: all(health.runs > 2 for health in upkeep.health.values()), "both to run again")
    assert (upkeep.healthy, upkeep.health["steady"].error) == (False, None)
    assert str(error) in (upkeep.health["shaky"].error or "")
    trouble.clear()
    await until(lambda: upkeep.healthy, "it to recover")
    upkeep.stop()
    await running


async def prepare_work_for_every_job(mq: AsyncSkep, db: psycopg.Connection) -> None:
    """Work for every job: a silent group, an old lease, messages to delete of which a group misses three."""
    q = mq.queue(Q)
    await q.configure(max_size=2, **AT_ONCE)
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "other")
    await q.push_many(range(5))
    await q.pop(group="other", batch=2, lease_time=10)
    pass_time(db, 31)


async def test_two_servers_at_once(clients: Callable[..., AsyncSkep], db: psycopg.Connection):
    """The second finds nothing left to do: no group dies twice, nothing is missed or sampled twice (scenario 62)."""
    one, two = clients(), clients()
    await prepare_work_for_every_job(one, db)
    upkeeps = [Upkeep(mq, JOBS) for mq in (one, two, one, two)]
    for _ in range(2):
        done = await asyncio.gather(*(upkeep.run_once() for upkeep in upkeeps))
    assert await statuses(one) == {"dead": "DEAD", "other": "ACTIVE"}
    assert all(upkeep.healthy for upkeep in upkeeps)
    assert {group.group: group.missed for group in await one.groups()} == {"dead": 3, "other": 3}
    assert (await kept(one), broken(db)) == ([3, 4], {})
    assert count(db, "samples") == 3  # of the queue, and of both groups
    assert [words for once in done for words in once.values() if words] == []


@pytest.mark.parametrize(
    ("name", "table"), [("detection", "subscriptions"), ("retention", "partition_floors"), ("retention", "messages")]
)
async def test_an_upkeep_that_is_killed(
    clients: Callable[..., AsyncSkep], db: psycopg.Connection, module_database_url: str, name: str, table: LiteralString
):
    """Its session ends while it works: nothing of that step is done, and the next run does it all (scenario 62)."""
    mq = clients()
    await prepare_work_for_every_job(mq, db)
    await mq.expire_leases()
    before: Any = (await statuses(mq), await kept(mq), await mq.groups())
    upkeep = Upkeep(mq, [BY_NAME[name]])
    with psycopg.connect(module_database_url) as other:
        other.execute(f"LOCK TABLE skep.{table} IN EXCLUSIVE MODE")
        running = asyncio.create_task(upkeep.run_once())
        await until(lambda: end_waiting_sessions(db), "the job to wait in the middle of its work")
        assert "terminat" in ((await running)[name] or "")
    assert not upkeep.healthy
    after = (await statuses(mq), await kept(mq), await mq.groups())
    assert (after[:2], [g.missed for g in after[2]], broken(db)) == (before[:2], [0, 0], {})
    assert await run(mq, "detection") == f"dead: dead on {Q}"
    assert await run(mq, "retention") == "deleted 3 messages (6 were missed by a group), dropped 0 idle partitions"
    await upkeep.run_once()
    assert (upkeep.healthy, broken(db)) == (True, {})
