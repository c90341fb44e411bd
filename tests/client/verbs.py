"""Short functions for what every test of the client does."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
import pytest

from skep import AsyncSkep, Message, SkepError
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.consumer import AsyncConsumer
from skep.client.aio.queue import AsyncQueue

E = TypeVar("E", bound=SkepError)
PATIENCE = 20.0  # seconds before a wait fails
LEASE_SECONDS = 300  # the default of a queue


class Caught:
    """The error, after the block has ended."""

    error: Any = None


@contextmanager
def refused(kind: type[SkepError], *words: str) -> Generator[Caught]:
    """Expect an error of exactly this class, whose message contains these words."""
    caught = Caught()
    with pytest.raises(kind) as info:
        yield caught
    caught.error = info.value
    assert type(info.value) is kind
    assert [word for word in words if word not in info.value.message] == [], info.value.message


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition, or its awaitable, is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        holds = condition()
        if await holds if isinstance(holds, Awaitable) else holds:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:.0f} s in vain: {what}")
        await asyncio.sleep(0.005)


async def opened(gate: asyncio.Event) -> None:
    """Wait at a gate inside a handler, but not forever: a failed test must end."""
    async with asyncio.timeout(PATIENCE):
        await gate.wait()


def payloads(messages: Iterable[Message]) -> list[Any]:
    return [message.payload for message in messages]


def offsets(messages: Iterable[Message]) -> list[int]:
    return [message.offset for message in messages]


async def take(source: AsyncQueue | AsyncSkep, group: str = "g", **options: Any) -> list[Any]:
    """Pop once, acknowledge, and return the payloads."""
    batch = await source.pop(**{"group": group, "batch": 100, **options})
    await batch.ack()
    return payloads(batch)


async def drain(source: AsyncQueue | AsyncSkep, group: str = "g", **options: Any) -> list[Message]:
    """Pop and acknowledge until the queue is empty."""
    drained: list[Message] = []
    while batch := await source.pop(**{"group": group, "batch": 100, **options}):
        await batch.ack()
        drained += batch
    return drained


async def lag(queue: AsyncQueue, group: str = "g") -> dict[str, int]:
    """Return the lag of the group by partition."""
    return {row.partition: row.lag for row in await queue.lag(group)}


async def dead(mq: AsyncSkep, queue: str, group: str | None = None) -> dict[int, str]:
    """Return the errors of the dead letters, by offset."""
    return {letter.offset: letter.error for letter in await mq.dead_letters(queue, group, limit=100_000)}


async def hold(queue: AsyncQueue, count: int, **options: Any) -> list[AsyncBatch]:
    """Pop `count` times without an ack."""
    return [await queue.pop(**{"group": "g", "batch": 100, **options}) for _ in range(count)]


def leased(db: psycopg.Connection) -> int:
    """Return the number of leases."""
    return db.execute("SELECT count(*) FROM skep.leases").fetchall()[0][0]


@asynccontextmanager
async def running(consumer: AsyncConsumer | AsyncSkep) -> AsyncGenerator[None]:
    """Run a consumer until the end of the block."""
    task = asyncio.create_task(consumer.run())
    try:
        yield
    finally:
        await consumer.stop()
        await task


async def nothing_left(mq: AsyncSkep, queue: str = "orders") -> None:
    async def done() -> bool:
        partitions = await lag(mq.queue(queue))
        return bool(partitions) and set(partitions.values()) == {0}

    await until(done, "everything to be done")
