"""Skep compared to pgqueuer and procrastinate: one publisher and one worker process each, on one server, in turn."""

import asyncio
import multiprocessing as mp
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import psycopg
import uvloop

from bench.contestants import CONTESTANTS, Contestant, Payload
from bench.plot import draw
from bench.report import Comparison, Row, progress

ROUNDS = 3
BATCH = 100
WARM_UP = 10  # calls
BACKLOG = 20_000
PER_SECOND = 20
START_SECONDS = 30.0
TRIAL = "trial"
CONDITIONS = (
    "One run on one machine with {cores} cores: the same PostgreSQL with durable commits, messages of 200 bytes,\n"
    "one publisher that waits for each call, one worker process. Rates are medians of rounds taken in turn."
)
CONTEXT = mp.get_context("spawn")

Database = psycopg.Connection[tuple[int, ...]]
Samples = dict[str, list[float]]  # by the key of the contestant


def payload(number: int = 0) -> Payload:
    return {"number": number, "order": "x" * 172}  # about 200 bytes of JSON


# Each trial has a new database, without the dead rows of the round before.


def _address(url: str, database: str) -> str:
    """Return the URL of another database of the server; asyncpg accepts only URLs."""
    return urlsplit(url)._replace(path=f"/{database}").geturl()


def _template(key: str) -> str:
    return "peer_" + key.replace("-", "_")


def _prepare(url: str, key: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {_template(key)}")
    uvloop.run(CONTESTANTS[key].prepare(_address(url, _template(key))))


@contextmanager
def _trial(url: str, key: str) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {TRIAL} TEMPLATE {_template(key)}")
        try:
            yield _address(url, TRIAL)
        finally:
            admin.execute(f"DROP DATABASE {TRIAL} WITH (FORCE)")


# The worker has its own process, and shares no event loop with the publisher. All run on uvloop, as PgQueuer's own
# command does.


async def _work(pipe: Connection, contestant: Contestant, url: str, every: int) -> None:
    count = 0

    def handle(job: Payload) -> None:
        nonlocal count
        now = time.perf_counter()  # a clock of the machine, so it can be compared with the publisher's
        count += 1
        if count % every == 0:
            pipe.send((job["number"], now))

    await contestant.work(url, handle)


def _serve(pipe: Connection, contestant: Contestant, url: str, every: int) -> None:
    uvloop.run(_work(pipe, contestant, url, every))


@contextmanager
def _worker(contestant: Contestant, url: str, *, every: int) -> Iterator[Connection]:
    """Start a worker. Yield a pipe with the number and the start time of every `every`-th job."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(theirs, contestant, url, every), daemon=True)
    process.start()
    theirs.close()  # so that a crash of the worker is an EOFError here
    try:
        yield ours
    finally:
        process.kill()  # its database is dropped next, so it need not end gracefully
        process.join()
        ours.close()


async def _publish(contestant: Contestant, url: str, seconds: float, size: int) -> float:
    """Return the jobs per second of one publisher that waits for each call."""
    async with contestant.publisher(url) as publisher:

        async def call() -> object:
            return await (publisher.one(payload()) if size == 1 else publisher.many([payload()] * size))

        for _ in range(WARM_UP):
            await call()
        calls, start = 0, time.perf_counter()
        while time.perf_counter() < start + seconds:
            await call()
            calls += 1
        return calls * size / (time.perf_counter() - start)


async def _fill(contestant: Contestant, url: str) -> None:
    async with contestant.publisher(url) as publisher:
        for _ in range(0, BACKLOG, BATCH):
            await publisher.many([payload()] * BATCH)


def _wait_for_jobs(database: Database, contestant: Contestant, enough: int, deadline: float) -> tuple[int, float]:
    """Wait until at most `enough` jobs are unfinished, or until the deadline. Return their number, and the time."""
    while True:
        [(count,)] = database.execute(contestant.unfinished).fetchall()
        left, now = int(count), time.perf_counter()
        if left <= enough or now >= deadline:
            return left, now
        time.sleep(0.002)


def _consume(contestant: Contestant, url: str, seconds: float) -> float:
    """Return the jobs finished per second, from the first finished jobs until the last one or the deadline.

    The database knows what is finished: some libraries finish jobs in batches, long after the handler.
    """
    uvloop.run(_fill(contestant, url))
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("VACUUM ANALYZE")
        with _worker(contestant, url, every=BACKLOG) as handled:
            before, start = _wait_for_jobs(database, contestant, BACKLOG - 1, time.perf_counter() + START_SECONDS)
            if before == BACKLOG:
                raise RuntimeError(f"the worker of {contestant.name} finishes nothing")
            if handled.poll(seconds):  # without queries until then, because they would slow the worker down
                handled.recv()  # raises EOFError if it has crashed
            after, end = _wait_for_jobs(database, contestant, 0, start + seconds)
            return (before - after) / (end - start)


async def _wait_for_starts(pipe: Connection, started: dict[int, float], jobs: int) -> None:
    """Wait until this many jobs have started, without blocking the event loop, which a publisher may need."""
    deadline = time.perf_counter() + START_SECONDS
    while len(started) < jobs:
        while pipe.poll():
            number, moment = pipe.recv()
            started.setdefault(number, moment)
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{len(started)} of {jobs} jobs have started")
        await asyncio.sleep(0.005)


async def _pace(contestant: Contestant, url: str, pipe: Connection, jobs: int) -> list[float]:
    sent: dict[int, float] = {}
    started: dict[int, float] = {}
    pauses = random.Random(0)  # random: equal pauses could synchronise with a timer
    async with contestant.publisher(url) as publisher:
        for number in range(WARM_UP + jobs + WARM_UP):
            sent[number] = time.perf_counter()
            await publisher.one(payload(number))
            await asyncio.sleep(pauses.uniform(0.5, 1.5) / PER_SECOND)
            if number == 0:
                await _wait_for_starts(pipe, started, 1)  # the worker is running
        await _wait_for_starts(pipe, started, len(sent))
    # The last jobs do not count either: a worker that waits for the next NOTIFY gets none after them.
    return [(started[number] - sent[number]) * 1e3 for number in range(WARM_UP, WARM_UP + jobs)]


def _latencies(contestant: Contestant, url: str, seconds: float) -> list[float]:
    """Return the milliseconds from the call of publish to the start of the handler, in an idle worker."""
    with _worker(contestant, url, every=1) as pipe:
        return uvloop.run(_pace(contestant, url, pipe, max(int(seconds * PER_SECOND), 2)))


def _measures(seconds: float) -> dict[str, Callable[[Contestant, str], list[float]]]:
    return {
        "batches": lambda contestant, url: [uvloop.run(_publish(contestant, url, seconds, BATCH))],
        "singles": lambda contestant, url: [uvloop.run(_publish(contestant, url, seconds, 1))],
        "consume": lambda contestant, url: [_consume(contestant, url, 2 * seconds)],
        "latency": lambda contestant, url: _latencies(contestant, url, 2 * seconds),
    }


def _run(url: str, seconds: float, keys: list[str]) -> dict[str, Samples]:
    """Return all samples of all measures, taken in turn so that a disturbance affects every contestant."""
    samples: dict[str, Samples] = defaultdict(lambda: defaultdict(list))
    for number in range(ROUNDS):
        for measure, take in _measures(seconds).items():
            for key in keys:
                progress(f"libraries: round {number + 1} of {ROUNDS}, {measure}, {key}")
                with _trial(url, key) as database:
                    samples[measure][key] += take(CONTESTANTS[key], database)
    return samples


def _compare(
    name: str, unit: str, samples: Samples, summary: Callable[[list[float]], float], *, less_is_better: bool = False
) -> Comparison:
    values = {CONTESTANTS[key].name: summary(taken) for key, taken in samples.items()}
    return Comparison(name, unit, values, less_is_better=less_is_better)


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def measure(url: str, seconds: float, keys: list[str], plot: Path) -> list[Row]:
    for key in keys:
        _prepare(url, key)
    samples = _run(url, seconds, keys)
    comparisons = [
        _compare(f"publish {BATCH} at once", "msg/s", samples["batches"], median),
        _compare("publish one by one", "msg/s", samples["singles"], median),
        _compare("consume, empty handler", "msg/s", samples["consume"], median),
        _compare("publish to handler, p50", "ms", samples["latency"], median, less_is_better=True),
        _compare("publish to handler, p99", "ms", samples["latency"], _p99, less_is_better=True),
    ]
    ours = CONTESTANTS["skep"].name
    draw(comparisons, lambda name: name == ours, plot, CONDITIONS.format(cores=os.cpu_count()))
    return [row for comparison in comparisons for row in comparison.rows(ours)]
