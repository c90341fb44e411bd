"""Background work during a measurement, each job in its own process."""

import asyncio
import multiprocessing as mp
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.workers import BATCH, PAYLOAD, Session
from skep import AsyncSkep
from skep.upkeep import detect_dead_groups, retain

CONTEXT = mp.get_context("spawn")
PUSH = "SELECT count(*) FROM skep.push_many(%s, %s, %s::text[]::jsonb[])"
POP = "SELECT count(*) FROM skep.pop(%s, %s, batch => %s::int, partitions => 8, auto_ack => true)"

EVERY = 0.5

Ended = Callable[[], bool]


def push_batch(session: Session, queue: str) -> int:
    session.run(PUSH, [queue] * BATCH, [f"p-{session.number}"] * BATCH, [PAYLOAD] * BATCH)
    return BATCH


def push(session: Session, ended: Ended, queue: str, rate: float = float("inf")) -> int:
    """Push batches of 100 to a partition, at a rate or as fast as possible. Return the number of messages."""
    pushed, start = 0, time.perf_counter()
    while not ended():
        pushed += push_batch(session, queue)
        time.sleep(max(start + pushed / rate - time.perf_counter(), 0))
    return pushed


def consume(session: Session, ended: Ended, queue: str, groups: list[str], batch: int) -> tuple[int, list[float]]:
    """Pop for these groups in turn. Return the number of messages, and the duration of each pop that returned some."""
    popped, times = 0, []
    while not ended():
        found = 0
        for group in groups:
            start = time.perf_counter()
            ((count,),) = session.run(POP, queue, group, batch)
            if count:
                times.append(time.perf_counter() - start)
            found += count
        popped += found
        if not found:
            time.sleep(0.005)
    return popped, times


def run_upkeep(_session: Session, ended: Ended, url: str) -> int:
    """Run retention and the check for dead groups, twenty times as often as a server. Return the number of rounds."""

    async def work() -> int:
        rounds = 0
        async with AsyncSkep(url) as mq:
            while not ended():
                await detect_dead_groups(mq)
                await retain(mq)
                await asyncio.sleep(EVERY)
                rounds += 1
        return rounds

    return asyncio.run(work())


def _serve(pipe: Connection, url: str, number: int, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    session = Session(url, number)
    pipe.send("ready")
    pipe.send(job(session, pipe.poll, *arguments))


class Helper:
    """A process that runs one job."""

    def __init__(self, url: str, number: int, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, url, number, job, arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.result: Any = None
        self.killed = False

    def end(self) -> None:
        """Ask the process to end, and read its result. Raises EOFError if it has crashed."""
        if not self.killed:
            self.pipe.send("end")
            self.result = self.pipe.recv()
            self.process.join()

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.join()


@contextmanager
def in_background(url: str, *jobs: tuple[Any, ...]) -> Iterator[list[Helper]]:
    """Run each job (function, arguments …) in a process, until the end of the block."""
    helpers = [Helper(url, number, job, tuple(rest)) for number, (job, *rest) in enumerate(jobs)]
    for helper in helpers:
        helper.pipe.recv()
    try:
        yield helpers
    finally:
        for helper in helpers:
            helper.end()
