"""Consume: one by one, in batches, side by side, until a limit, until idle, until told to stop."""

import asyncio
import time

from queen import Queen
from talk import IS_0_15, data, name, pop, tell


async def conversation(queen: Queen) -> dict:
    seen = {}
    for part in (one_by_one, in_batches, default_size, side_by_side, by_hand, until_stopped, woken):
        seen.update(await part(queen))
    return seen


async def one_by_one(queen: Queen) -> dict:
    queue, handled = name("each"), []

    async def handle(message: dict) -> None:
        handled.append(message["data"])

    await queen.queue(queue).push([{"data": number} for number in range(5)])
    await queen.queue(queue).batch(5).each().limit(5).consume(handle)
    return {"each": handled, "each left": await pop(queen, queue)}


async def in_batches(queen: Queen) -> dict:
    queue, handled = name("batch"), []

    async def handle(messages: list) -> None:
        handled.append(data(messages))

    await queen.queue(queue).push([{"data": number} for number in range(7)])
    await queen.queue(queue).batch(3).partitions(1).idle_millis(200).timeout_millis(100).consume(handle)
    return {"batches": handled, "batches left": await pop(queen, queue)}


async def default_size(queen: Queen) -> dict:
    """0.15 asks for one message; newer clients leave the number to the server, and then get a list."""
    queue, handled = name("default"), []

    async def handle(message: dict | list) -> None:
        handled.extend([message["data"]] if isinstance(message, dict) else data(message))

    await queen.queue(queue).push([{"data": number} for number in range(3)])
    await queen.queue(queue).idle_millis(200).timeout_millis(100).consume(handle)
    return {"default": handled}


async def side_by_side(queen: Queen) -> dict:
    """Workers share a queue of many partitions; each partition keeps its order and has one worker at a time."""
    queue, handled, at_work, overlaps = name("workers"), {}, set(), []
    for partition in map(str, range(6)):
        await queen.queue(queue).partition(partition).push([{"data": number} for number in range(20)])

    async def handle(message: dict) -> None:
        partition = message["partition"]
        overlaps.extend([partition] if partition in at_work else [])
        at_work.add(partition)
        await asyncio.sleep(0)
        handled.setdefault(partition, []).append(message["data"])
        at_work.discard(partition)

    workers = queen.queue(queue).group("workers").concurrency(4).batch(5).partitions(2).each()
    await workers.idle_millis(500).timeout_millis(200).consume(handle)
    return {"workers": handled, "overlaps": overlaps}


async def by_hand(queen: Queen) -> dict:
    """With callbacks the client acks nothing by itself."""
    queue, called = name("hand"), []

    async def handle(message: dict) -> str:
        if message["data"] == "bad":
            raise ValueError("bad one")
        return "done"

    async def on_success(message: dict, result: str) -> None:
        called.append([message["data"], result])
        await queen.ack(message)

    async def on_error(message: dict, error: Exception) -> None:
        called.append([message["data"], str(error)])
        await queen.ack(message, "dlq", {"error": str(error)})

    await queen.queue(queue).push([{"data": "good"}, {"data": "bad"}, {"data": "better"}])
    await queen.queue(queue).batch(1).each().limit(3).consume(handle).on_success(on_success).on_error(on_error)
    return {"called": called}


async def until_stopped(queen: Queen) -> dict:
    queue, stop, handled = name("stop"), asyncio.Event(), []

    async def handle(message: dict) -> None:
        handled.append(message["data"])
        stop.set()

    await queen.queue(queue).push([{"data": "one"}, {"data": "two"}])
    await queen.queue(queue).batch(2).each().consume(handle, signal=stop)
    return {"stopped": handled}


async def woken(queen: Queen) -> dict:
    """A consumer that waits gets a message as soon as it is pushed."""
    queue, latency = name("woken"), []

    async def handle(message: dict) -> None:
        latency.append(time.monotonic() - message["data"])

    consumer = asyncio.ensure_future(queen.queue(queue).batch(1).limit(3).consume(handle))
    for _ in range(3):
        await asyncio.sleep(0.3)
        await queen.queue(queue).push({"data": time.monotonic()})
    await consumer
    return {"latency": latency, "is 0.15": IS_0_15}


tell(conversation)
