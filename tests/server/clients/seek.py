"""Consumer groups that are moved, and forgotten."""

import asyncio
from datetime import UTC, datetime

from queen import Queen
from talk import name, push, take, tell


async def conversation(queen: Queen) -> dict:
    return {**await seeking(queen), **await forgetting(queen)}


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
