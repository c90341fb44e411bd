"""Two servers, one database: whatever one takes the other gives, at once."""

import asyncio
import time

from queen import Queen
from talk import URLS, data, name, pop, tell

NOBODY = "http://127.0.0.1:9"


async def conversation(queen: Queen) -> dict:
    seen = {}
    async with Queen(URLS[1]) as other, Queen([NOBODY, *URLS]) as either:
        seen.update(await woken(queen, other))
        seen.update(await shared(queen, other))
        seen.update(await failing_over(either))
    return seen


async def woken(queen: Queen, other: Queen) -> dict:
    queue = name("woken")
    await queen.queue(queue).create()
    parked = asyncio.create_task(other.queue(queue).timeout_millis(20_000).pop())
    await asyncio.sleep(0.5)
    pushed = time.monotonic()
    await queen.queue(queue).push({"data": "from the other"})
    return {"woken": data(await parked), "latency": time.monotonic() - pushed}


async def shared(queen: Queen, other: Queen) -> dict:
    """A lease of one server is known to the other."""
    queue = name("shared")
    await queen.queue(queue).push([{"data": 1, "transactionId": "one"}, {"data": 2}])
    again = await other.queue(queue).push({"data": 1, "transactionId": "one"})
    first = await pop(queen, queue, batch=1)
    while_leased = await pop(other, queue)
    renewed = await other.renew(first[0])
    acked = await other.ack(first)
    return {
        "again": again[0]["status"],
        "while leased": while_leased,
        "renewed": renewed["success"],
        "acked": acked["success"],
        "then": data(await pop(queen, queue)),
    }


async def failing_over(either: Queen) -> dict:
    """A client with several addresses finds one that lives."""
    queue, handled = name("failover"), []

    async def handle(message: dict) -> None:
        handled.append(message["data"])

    await either.queue(queue).push([{"data": number} for number in range(6)])
    await either.queue(queue).batch(2).each().limit(6).consume(handle)
    return {"failed over": handled}


tell(conversation)
