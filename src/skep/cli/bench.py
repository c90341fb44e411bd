"""`skep bench`: measure the throughput and latency of a temporary queue."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from skep.cli.connect import connect_async
from skep.cli.options import DatabaseUrl, DataDir, Json
from skep.cli.show import Cell, error_console, show_json, show_table
from skep.cli.signals import run_until_stopped
from skep.config import Config
from skep.message import NewMessage

if TYPE_CHECKING:
    from skep import AsyncSkep
    from skep.client.aio.batch import AsyncBatch

GROUP = "bench"
PUSH_INTERVAL = 0.02  # seconds between two pushes of the latency measurement


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Seconds for each measurement, concurrent workers, messages in a call, bytes in a message, and partitions."""

    seconds: float
    workers: int
    batch: int
    size: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """A result. The percentiles are milliseconds of a call, or from push to delivery."""

    what: str
    messages: int
    messages_per_second: float
    p50_ms: float
    p99_ms: float


def bench(
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds for each measurement.")] = 5,
    workers: Annotated[int, typer.Option(min=1, max=100, help="Number of concurrent workers.")] = 8,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Number of messages in a call.")] = 100,
    size: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of bytes in a message.")] = 200,
    partitions: Annotated[int, typer.Option(min=1, max=100_000, help="Number of partitions.")] = 8,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Measure pushes, pops and latency on a temporary queue."""
    config = Config.load_client(database_url, data_dir)
    run_until_stopped(_bench(config, BenchOptions(seconds, workers, batch, size, partitions), as_json=as_json))


async def _bench(config: Config, options: BenchOptions, *, as_json: bool) -> None:
    async with connect_async(config, pool_size=options.workers + 2) as mq:
        results = await Bench(mq, options).run()
    if as_json:
        show_json(results)
    else:
        headers = ("measured", "messages", "messages/s", "p50 ms", "p99 ms")
        show_table(headers, (_row(result) for result in results))


def _row(result: Measurement) -> tuple[Cell, ...]:
    return result.what, result.messages, result.messages_per_second, result.p50_ms, result.p99_ms


class Bench:
    """Runs the measurements one after the other, and deletes the queue at the end."""

    def __init__(self, mq: "AsyncSkep", options: BenchOptions) -> None:
        self._mq = mq
        self._options = options
        self._queue = mq.queue(f"bench-{uuid4().hex[:12]}")
        self._numbers = count()
        self._payload = os.urandom(options.size // 2 + 1).hex()[: options.size]  # random, because TOAST compresses

    async def run(self) -> list[Measurement]:
        batch = self._options.batch
        try:
            return [
                await self._measure_calls("push 1", lambda: self._push(1)),
                await self._measure_calls(f"push {batch}", lambda: self._push(batch)),
                await self._measure_calls(f"pop and ack up to {batch}", self._pop),
                await self._measure_latency(),
            ]
        finally:
            await self._queue.delete()
            await self._mq.delete_group(GROUP)

    async def _push(self, number: int) -> int:
        partitions = [f"partition-{next(self._numbers) % self._options.partitions}" for _ in range(number)]
        await self._queue.push_many([NewMessage(self._payload, partition) for partition in partitions])
        return number

    async def _pop(self) -> int:
        batch = await self._queue.pop(group=GROUP, batch=self._options.batch, subscription_mode="all")
        await batch.ack()
        return len(batch)

    async def _measure_calls(self, what: str, call: Callable[[], Awaitable[int]]) -> Measurement:
        """Let all workers call as often as they can."""
        start = perf_counter()
        times: list[float] = []
        messages = 0

        async def work() -> None:
            nonlocal messages
            while (before := perf_counter()) < start + self._options.seconds:
                done = await call()
                messages += done  # a separate statement: `messages += await call()` would lose concurrent additions
                times.append(perf_counter() - before)

        # A task group also waits when it is cancelled, so no push is in progress when the queue is deleted.
        with error_console().status(what):
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._options.workers):
                    workers.create_task(work())
        return measurement(what, messages, perf_counter() - start, times)

    async def _measure_latency(self) -> Measurement:
        """Measure the time from the start of a push to its delivery to a waiting consumer."""
        what = "push to a waiting consumer"
        times: list[float] = []
        delivered = asyncio.Event()

        async def handle(_: "AsyncBatch") -> None:
            delivered.set()

        consumer = self._mq.consumer(self._queue.name, group=GROUP, per="batch")(handle)
        await self._mq.seek(GROUP, self._queue.name, "end")
        running = asyncio.create_task(consumer.run())
        start = perf_counter()
        with error_console().status(what):
            while perf_counter() < start + self._options.seconds:
                await asyncio.sleep(PUSH_INTERVAL)
                delivered.clear()
                before = perf_counter()
                await self._queue.push(self._payload)
                await delivered.wait()
                times.append(perf_counter() - before)
        await consumer.stop()
        await running
        return measurement(what, len(times), perf_counter() - start, times)


def measurement(what: str, messages: int, seconds: float, times: list[float]) -> Measurement:
    from statistics import quantiles

    percentiles = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return Measurement(what, messages, messages / seconds, percentiles[49] * 1000, percentiles[98] * 1000)
