"""Leases: renewed they last, else the messages come again."""

import asyncio

from queen import Queen
from talk import data, name, pop, tell


async def conversation(queen: Queen) -> dict:
    parts = await asyncio.gather(renewed(queen), expired(queen), in_consume(queen), of_many_partitions(queen))
    return {word: what for part in parts for word, what in part.items()}


async def renewed(queen: Queen) -> dict:
    queue = await short_lease(queen, name("renewed"))
    (message,) = await pop(queen, queue)
    by_message, by_id = await queen.renew(message), await queen.renew(message["leaseId"])
    await asyncio.sleep(1.5)  # beyond the first lease
    return {
        "by message": by_message,
        "by id": by_id["success"],
        "kept": await pop(queen, queue),
        "acked": (await queen.ack(message))["success"],
        "released": await queen.renew(message),
    }


async def expired(queen: Queen) -> dict:
    queue = await short_lease(queen, name("expired"))
    (first,) = await pop(queen, queue)
    (again,) = await queen.queue(queue).batch(1).timeout_millis(10_000).pop()
    late = await queen.ack(first)
    return {
        "again": again["data"],
        "another lease": first["leaseId"] != again["leaseId"],
        "late": late,
        "in time": (await queen.ack(again))["success"],
        "nobody's": await queen.renew("0190a8b2-0000-7000-8000-000000000001"),
    }


async def in_consume(queen: Queen) -> dict:
    """A handler slower than the lease is called once, because the client renews meanwhile."""
    queue, handled = await short_lease(queen, name("slow")), []

    async def handle(message: dict) -> None:
        handled.append(message["data"])
        await asyncio.sleep(1.8)

    slow = queen.queue(queue).batch(1).limit(1).renew_lease(enabled=True, interval_millis=300)
    other = queen.queue(queue).batch(1).timeout_millis(1600)
    _, meanwhile = await asyncio.gather(slow.consume(handle), later(other.pop, 0.1))
    return {"handled": handled, "meanwhile": meanwhile, "afterwards": await pop(queen, queue)}


async def of_many_partitions(queen: Queen) -> dict:
    """One lease covers all partitions of a pop, so one call renews them."""
    queue = await short_lease(queen, name("many"))
    await queen.queue(queue).partition("p").push({"data": "p"})
    messages = await queen.queue(queue).batch(10).partitions(5).wait(enabled=False).pop()
    calls = await queen.renew(messages)
    await asyncio.sleep(1.5)
    return {
        "many": sorted(data(messages)),
        "calls": len(calls),
        "kept all": await queen.queue(queue).batch(10).partitions(5).wait(enabled=False).pop(),
        "all acked": (await queen.ack(messages))["success"],
    }


async def short_lease(queen: Queen, queue: str) -> str:
    await queen.queue(queue).config({"lease_time": 1}).create()
    await queen.queue(queue).push({"data": "message"})
    return queue


async def later(pop_it, seconds: float) -> list:
    await asyncio.sleep(seconds)
    return await pop_it()


tell(conversation)
