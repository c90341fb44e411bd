"""Background jobs. Any number of processes may run the same job at the same time.

lease_expiry  ends the expired leases of consumers that died
detection     declares groups dead that have sent no heartbeat for too long
retention     deletes the messages that the retention rules allow, in small transactions
sampling      records offsets and cursors, from which rates and lags over time are computed
pruning       deletes old journal rows, samples, traces, finished leases and unpublished batches of Spark
held_push     stores pushes that were held during maintenance mode and are still left over
outbox        publishes outbox rows that were committed under REPEATABLE READ or SERIALIZABLE
delayed       appends delayed messages that are due to their partitions
schedule      pushes the ticks of schedules that are due
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

import psycopg

from skep.client import AsyncSkep
from skep.config import LEAST_INTERVAL, LONGEST_INTERVAL, Config
from skep.errors import InvalidArgument, SkepError

LONGEST_RETENTION_RUN = 5.0  # seconds
PRUNED_LEASES = 50_000  # in one transaction

log = logging.getLogger("skep.upkeep")


@dataclass(frozen=True, slots=True)
class Job:
    """A background job. `run` does its work once and returns a short description of it, or None if there was none.

    `every` is the number of seconds between two runs, `setting` the field of `Config` that changes it.
    """

    name: str
    every: float
    run: Callable[[AsyncSkep], Awaitable[str | None]]
    setting: str | None = None


@dataclass(slots=True)
class JobHealth:
    """The interval of a job, its number of runs, and the duration and the error of its last run."""

    every: float
    runs: int = 0
    seconds: float = 0
    error: str | None = None


class Upkeep:
    """Runs jobs, each at its own interval, until it is stopped. A failed run is logged; the next one is not affected.

    `intervals` replaces the interval of a job, by its name.
    """

    def __init__(self, mq: AsyncSkep, jobs: Sequence[Job], intervals: Mapping[str, float] | None = None) -> None:
        intervals = intervals or {}
        _check(intervals, [job.name for job in jobs])
        self._mq = mq
        self._jobs = [replace(job, every=intervals.get(job.name, job.every)) for job in jobs]
        self._stopping = asyncio.Event()
        self.health = {job.name: JobHealth(job.every) for job in self._jobs}

    @property
    def healthy(self) -> bool:
        return all(health.error is None for health in self.health.values())

    async def run(self) -> None:
        await asyncio.gather(*(self._repeat(job) for job in self._jobs))

    def stop(self) -> None:
        """Start no more runs. `run` returns when the current runs have ended."""
        self._stopping.set()

    async def run_once(self) -> dict[str, str | None]:
        """Run every job once, one after the other. Return what each job did, or its error."""
        return {job.name: await self._run(job) for job in self._jobs}

    async def _repeat(self, job: Job) -> None:
        while not self._stopping.is_set():
            await self._run(job)
            try:
                await asyncio.wait_for(self._stopping.wait(), job.every)
            except TimeoutError:
                continue

    async def _run(self, job: Job) -> str | None:
        health, start = self.health[job.name], monotonic()
        try:
            done, health.error = await job.run(self._mq), None
        except (SkepError, psycopg.Error) as error:
            done = health.error = str(error)
            log.warning("%s failed: %s", job.name, error)
        except Exception as error:  # a bug in one job must not stop the others
            done = health.error = f"{type(error).__name__}: {error}"
            log.exception("%s failed: %s", job.name, done)
        else:
            if done:
                log.info("%s: %s", job.name, done)
        health.runs += 1
        health.seconds = monotonic() - start
        return done


def _check(intervals: Mapping[str, float], known: Sequence[str]) -> None:
    for name, seconds in intervals.items():
        if name not in known:
            raise InvalidArgument(f'there is no job "{name}"', hint=f"jobs: {', '.join(known)}")
        if not LEAST_INTERVAL <= seconds <= LONGEST_INTERVAL:
            allowed = f"between {LEAST_INTERVAL:g} and {LONGEST_INTERVAL:g} seconds"
            raise InvalidArgument(f"the interval of {name} must be {allowed}, got {seconds}")


async def expire_leases(mq: AsyncSkep) -> None:
    await mq.expire_leases()


async def detect_dead_groups(mq: AsyncSkep) -> str | None:
    died = [f"{found.group} on {found.scope}" for found in await mq.detect_dead_groups() if found.died]
    return f"dead: {', '.join(died)}" if died else None


async def retain(mq: AsyncSkep) -> str | None:
    end = monotonic() + LONGEST_RETENTION_RUN
    messages = missed = dropped = 0
    while True:
        result = await mq.retain_due()
        messages += result.messages
        missed += result.missed
        dropped += result.dropped_partitions
        if monotonic() > end or not (result.messages or result.dropped_partitions):
            break
    if not (messages or dropped):
        return None
    return f"deleted {messages:,} messages ({missed:,} were missed by a group), dropped {dropped:,} idle partitions"


async def sample(mq: AsyncSkep) -> None:
    await mq.sample()


async def prune(mq: AsyncSkep) -> str | None:
    journal, samples, traces = await mq.prune_journal(), await mq.prune_samples(), await mq.prune_traces()
    leases = last = await mq.prune_lease_log(PRUNED_LEASES)
    while last == PRUNED_LEASES:  # there may be more
        last = await mq.prune_lease_log(PRUNED_LEASES)
        leases += last
    await mq.prune_sinks()
    if not (journal or samples or traces or leases):
        return None
    return f"pruned {journal:,} journal rows, {samples:,} samples, {traces:,} traces and the log of {leases:,} leases"


async def store_held_pushes(mq: AsyncSkep) -> str | None:
    """Store pushes that a server left behind when it died, and retry those that the database refused."""
    stored = 0
    while messages := (await mq.drain_held_pushes()).messages:
        stored += messages
    last = await mq.drain_held_pushes(again=True)
    stored += last.messages
    refused = f", {last.refused:,} requests are still refused" if last.refused else ""
    return f"stored {stored:,} held messages{refused}" if stored or refused else None


async def move_outbox(mq: AsyncSkep) -> str | None:
    moved = await mq.move_committed_outbox()
    messages = moved.messages
    while moved.messages:
        moved = await mq.move_committed_outbox()
        messages += moved.messages
    refused = f"{moved.refused:,} messages of the outbox are refused by their queues" if moved.refused else ""
    published = f"published {messages:,} messages of the outbox" if messages else ""
    return "; ".join(filter(None, (published, refused))) or None


async def append_delayed(mq: AsyncSkep) -> str | None:
    messages = 0
    while appended := (await mq.append_delayed()).messages:
        messages += appended
    return f"appended {messages:,} delayed messages" if messages else None


async def run_schedules(mq: AsyncSkep) -> str | None:
    ran = await mq.run_schedules()
    messages = ran.messages
    while ran.messages:
        ran = await mq.run_schedules()
        messages += ran.messages
    refused = f"{ran.refused:,} schedules are refused by their queues" if ran.refused else ""
    pushed = f"pushed {messages:,} scheduled messages" if messages else ""
    return "; ".join(filter(None, (pushed, refused))) or None


JOBS = (
    Job("lease_expiry", 5, expire_leases, "lease_expiry_interval"),
    Job("detection", 15, detect_dead_groups, "detection_interval"),
    Job("retention", 10, retain, "retention_interval"),
    Job("sampling", 10, sample, "sampling_interval"),
    Job("pruning", 60, prune, "pruning_interval"),
    Job("held_push", 5, store_held_pushes, "held_push_interval"),
    Job("outbox", 1, move_outbox, "outbox_interval"),
    Job("delayed", 1, append_delayed, "delayed_interval"),
    Job("schedule", 1, run_schedules, "schedule_interval"),
)


def intervals(config: Config) -> dict[str, float]:
    """Return the interval that the settings give each job, by its name."""
    return {job.name: getattr(config, job.setting) for job in JOBS if job.setting is not None}
