"""Consumer groups: each has everything; where a new one starts; seeking and forgetting."""

import asyncio
from datetime import UTC, datetime

from queen import Queen
from talk import data, name, pop, tell

LONG_AGO = 0.5  # seconds: what is younger may be new to a group that is


async def conversation(queen: Queen) -> dict:
    seen = {}
    for part in (independent, modes, on_an_empty_queue, from_a_time, seeking, forgetting):
        seen.update(await part(queen))
    return seen


async def take(queen: Queen, queue: str, group: str, **options: object) -> list:
    """Pop and ack; return the payloads."""
    messages = await pop(queen, queue, group=group, **options)
    if messages:
        assert (await queen.ack(messages, context={"group": group}))["success"], "the ack is taken"
    return data(messages)


async def push(queen: Queen, queue: str, *payloads: object) -> None:
    await queen.queue(queue).push([{"data": payload} for payload in payloads])


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


async def seeking(queen: Queen) -> dict:
    queue = name("seek")
    await push(queen, queue, 1)
    await asyncio.sleep(0.05)
    between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await asyncio.sleep(0.05)
    await push(queen, queue, 2, 3)
    seen: dict = {"at first": await take(queen, queue, "g")}
    seen["back"] = await queen.admin.seek_consumer_group("g", queue, {"timestamp": between})
    seen["after back"] = await take(queen, queue, "g")
    await queen.admin.seek_consumer_group("g", queue, {"timestamp": "2020-01-01T00:00:00Z"})
    seen["from start"] = await take(queen, queue, "g", batch=1)
    seen["end"] = await queen.admin.seek_consumer_group("g", queue, {"toEnd": True})
    seen["after end"] = await take(queen, queue, "g")
    await push(queen, queue, 4)
    seen["later"] = await take(queen, queue, "g")
    return seen


async def forgetting(queen: Queen) -> dict:
    queue, group = name("forget"), name("forgotten")
    await push(queen, queue, 1, 2)
    seen: dict = {"known": await take(queen, queue, group, subscription_mode="all")}
    seen["deleted"] = await queen.delete_consumer_group(group)
    seen["as new"] = await take(queen, queue, group, subscription_mode="all")
    seen["of queue"] = await queen.admin.delete_consumer_group_for_queue(group, queue)
    seen["as new again"] = await take(queen, queue, group, subscription_mode="all")
    seen["deleted twice"] = [(await queen.delete_consumer_group(group))["success"] for _ in range(2)]
    await take(queen, queue, group, subscription_mode="new")
    moved = await queen.update_consumer_group_timestamp(group, "2020-01-01T00:00:00.000Z")
    return seen | {"moved": moved["success"]}


tell(conversation)
