"""Consumer groups: each has everything, and where a new one starts."""

import asyncio
from datetime import UTC, datetime

from queen import Queen
from talk import data, name, pop, push, take, tell

LONG_AGO = 0.5  # seconds: what is younger may be new to a group that is


async def conversation(queen: Queen) -> dict:
    seen = {}
    for part in (independent, modes, on_an_empty_queue, from_a_time):
        seen.update(await part(queen))
    return seen


async def independent(queen: Queen) -> dict:
    queue = name("all")
    await push(queen, queue, 1, 2)
    group_a = await pop(queen, queue, group="a")
    return {
        "a": data(group_a),
        "b while a": await take(queen, queue, "b"),
        "queue mode": data(await pop(queen, queue)),
        "named": group_a[0].get("consumerGroup"),
        "a again": await take(queen, queue, "a"),
    }


async def modes(queen: Queen) -> dict:
    """`new` starts now, and says so once; the server remembers."""
    queue = name("modes")
    await push(queen, queue, "old")
    await asyncio.sleep(LONG_AGO)
    started = [
        await take(queen, queue, "new", subscription_mode="new"),
        await take(queen, queue, "now", subscription_from="now"),
        await take(queen, queue, "new-only", subscription_mode="new-only"),
    ]
    await push(queen, queue, "fresh")
    await queen.queue(queue).partition("late").push({"data": "late"})
    drained = {}
    for group in ("new", "now", "new-only"):
        drained[group] = sorted(await take(queen, queue, group) + await take(queen, queue, group))
    everything = await take(queen, queue, "all", subscription_mode="all") + await take(queen, queue, "all")
    return {"started": started, "drained": drained, "everything": sorted(everything)}


async def on_an_empty_queue(queen: Queen) -> dict:
    """A group that asks for what is new before there is anything gets the first message."""
    queue = name("empty")
    await queen.queue(queue).create()
    before = await take(queen, queue, "new", subscription_mode="new")
    await push(queen, queue, "first")
    return {"before": before, "first": await take(queen, queue, "new", subscription_mode="new")}


async def from_a_time(queen: Queen) -> dict:
    queue = name("time")
    await push(queen, queue, "before")
    await asyncio.sleep(0.05)
    between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await asyncio.sleep(0.05)
    await push(queen, queue, "after")
    return {"from": await take(queen, queue, "g", subscription_from=between), "between": between[-1]}


tell(conversation)
