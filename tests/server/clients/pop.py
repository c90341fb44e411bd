"""Pop: batches, partitions, leases, and waiting."""

import asyncio
import time

from queen import Queen
from talk import data, name, pop, tell


async def conversation(queen: Queen) -> dict:
    return {**await batches(queen), **await partitions(queen), **await waiting(queen)}


async def batches(queen: Queen) -> dict:
    queue = name("batches")
    seen: dict = {"missing queue": await pop(queen, name("missing"))}
    await queen.queue(queue).push([{"data": number} for number in range(5)])
    first = await pop(queen, queue, batch=3)
    seen["first"] = first
    seen["while leased"] = await pop(queen, queue)
    await queen.ack(first)
    rest = await pop(queen, queue)
    seen["rest"] = data(rest)
    await queen.ack(rest)
    seen["after"] = await pop(queen, queue)
    return seen


async def partitions(queen: Queen) -> dict:
    queue = name("partitions")
    for partition in "abc":
        await queen.queue(queue).partition(partition).push([{"data": partition + number} for number in "12"])
    await queen.queue(queue).push({"data": "default"})
    alone = await pop(queen, queue, partition="b")
    together = await queen.queue(queue).batch(100).partitions(10).wait(enabled=False).pop()
    return {
        "alone": data(alone),
        "together": sorted(data(together)),
        "contiguous": [message["partition"] for message in together],
        "leases": len({message["leaseId"] for message in together}),
        "acked": (await queen.ack(together))["success"],
        "unset": len(await queen.queue(queue).partition("b").wait(enabled=False).pop()),
    }


async def waiting(queen: Queen) -> dict:
    """A waiting pop ends when there is a message, or when its time is over."""
    queue = name("waiting")
    started = time.monotonic()
    nothing = await queen.queue(queue).timeout_millis(400).pop()
    waited = time.monotonic() - started
    parked = asyncio.create_task(queen.queue(queue).timeout_millis(20_000).pop())
    await asyncio.sleep(0.5)
    pushed = time.monotonic()
    await queen.queue(queue).push({"data": "woken"})
    woken = await parked
    return {"nothing": nothing, "waited": waited, "woken": data(woken), "latency": time.monotonic() - pushed}


tell(conversation)
