"""`skep bench`: how fast it is from here, on a queue that is made for it and deleted at the end."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from statistics import quantiles
from time import perf_counter
from uuid import uuid4

from skep import AsyncSkep, NewMessage
from skep.cli.connect import client
from skep.cli.report import errors
from skep.cli.show import Cell, show_json, show_table
from skep.cli.stopping import run_until_stopped
from skep.client.aio.batch import AsyncBatch
from skep.config import Config

GROUP = "bench"
PAUSE = 0.02  # seconds between the pushes whose way is measured


@dataclass(frozen=True, slots=True)
class Wish:
    """What is measured: how long each, by how many at once, how many messages a call and how large."""

    seconds: float
    workers: int
    batch: int
    size: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Times are milliseconds of a call, or of a message's way."""

    what: str
    messages: int
    messages_per_second: float
    p50_ms: float
    p99_ms: float


class Bench:
    """The measurements, one after the other."""

    def __init__(self, mq: AsyncSkep, wish: Wish) -> None:
        self._mq = mq
        self._wish = wish
        self._queue = mq.queue(f"bench-{uuid4().hex[:12]}")
        self._numbers = count()
        self._fill = os.urandom(wish.size // 2 + 1).hex()[: wish.size]  # what compresses well would flatter

    async def run(self) -> list[Measured]:
        wish = self._wish
        try:
            return [
                await self._hammer("push 1", lambda: self._push(1)),
                await self._hammer(f"push {wish.batch}", lambda: self._push(wish.batch)),
                await self._hammer(f"pop and ack up to {wish.batch}", self._pop),
                await self._way(),
            ]
        finally:
            await self._queue.delete()
            await self._mq.delete_group(GROUP)

    async def _push(self, number: int) -> int:
        partitions = [f"lane-{next(self._numbers) % self._wish.partitions}" for _ in range(number)]
        await self._queue.push_many([NewMessage(self._fill, partition) for partition in partitions])
        return number

    async def _pop(self) -> int:
        batch = await self._queue.pop(group=GROUP, batch=self._wish.batch, subscription_mode="all")
        await batch.ack()
        return len(batch)

    async def _hammer(self, what: str, call: Callable[[], Awaitable[int]]) -> Measured:
        """Let all workers call as often as they can."""
        start = perf_counter()
        times: list[float] = []
        messages = 0

        async def work() -> None:
            nonlocal messages
            while (before := perf_counter()) < start + self._wish.seconds:
                done = await call()
                messages += done  # not in one line: the sum would be read before others add to it
                times.append(perf_counter() - before)

        with errors.status(what):
            async with (
                asyncio.TaskGroup() as workers
            ):  # if it is stopped, no push is under way when the queue is deleted
                for _ in range(self._wish.workers):
                    workers.create_task(work())
        return measured(what, messages, perf_counter() - start, times)

    async def _way(self) -> Measured:
        """From the beginning of a push to a consumer that waits for it."""
        times: list[float] = []
        arrived = asyncio.Event()

        async def note(_: AsyncBatch) -> None:
            arrived.set()

        consumer = self._mq.consumer(self._queue.name, group=GROUP, per="batch")(note)
        await self._mq.seek(GROUP, self._queue.name, "end")
        running = asyncio.create_task(consumer.run())
        start = perf_counter()
        with errors.status("push to a waiting consumer"):
            while perf_counter() < start + self._wish.seconds:
                await asyncio.sleep(PAUSE)
                arrived.clear()
                before = perf_counter()
                await self._queue.push(self._fill)
                await arrived.wait()
                times.append(perf_counter() - before)
        await consumer.stop()
        await running
        return measured("push to a waiting consumer", len(times), perf_counter() - start, times)


def measured(what: str, messages: int, seconds: float, times: list[float]) -> Measured:
    hundredths = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return Measured(what, messages, messages / seconds, hundredths[49] * 1000, hundredths[98] * 1000)


def run(config: Config, wish: Wish, *, as_json: bool) -> None:
    run_until_stopped(_bench(config, wish, as_json=as_json))


async def _bench(config: Config, wish: Wish, *, as_json: bool) -> None:
    async with client(config, pool_size=wish.workers + 2) as mq:
        results = await Bench(mq, wish).run()
    if as_json:
        show_json(results)
    else:
        headers = ("measured", "messages", "messages/s", "p50 ms", "p99 ms")
        show_table(headers, (_row(result) for result in results))


def _row(result: Measured) -> tuple[Cell, ...]:
    return result.what, result.messages, result.messages_per_second, result.p50_ms, result.p99_ms
