"""Short words for what happens to groups and to the messages they are owed."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from skep import AsyncSkep, Message
from skep.upkeep import detect_dead_groups, retain
from tests.engine.verbs import pass_time

Q = "orders"
AT_ONCE: dict[str, Any] = {"completed_retention_seconds": 0}
HOUR = 3600
SILENCE = 1000  # seconds: more than any group survives with the defaults


async def kept(mq: AsyncSkep, partition: str = "Default", queue: str = Q) -> list[int]:
    """Return the offsets that are still there, after retention has run."""
    await retain(mq)
    lanes = [lane for lane in await mq.queue(queue).partitions() if lane.partition == partition]
    return [offset for lane in lanes for offset in range(lane.first_offset, lane.last_offset + 1)]


async def bury(mq: AsyncSkep, db: psycopg.Connection, *groups: str, queue: str = Q) -> None:
    """Let these groups fall silent until they are dead; all others of the queue give a sign of life."""
    pass_time(db, SILENCE)
    for group in {subscription.group for subscription in await mq.subscriptions(queue=queue)} - set(groups):
        await mq.heartbeat(group, queue)
    await detect_dead_groups(mq)
    assert {group: (await status(mq, group, queue)) for group in groups} == dict.fromkeys(groups, "DEAD")


async def status(mq: AsyncSkep, group: str, queue: str = Q) -> str:
    ((found),) = await mq.groups(group, queue)
    return found.status


async def missed(mq: AsyncSkep, queue: str = Q) -> dict[str, int]:
    """Return how much retention took from groups that were not done with it, where it took something."""
    return {found.group: found.missed for found in await mq.groups(queue=queue) if found.missed}


async def owing(mq: AsyncSkep, partition: str = "Default", queue: str = Q) -> list[list[str]]:
    """Return for each message who has still to do it."""
    return [message.pending_groups for message in await mq.message_status(queue, partition)]


def by_lane(messages: Iterable[Message]) -> dict[str, list[int]]:
    """Return the offsets of each lane, in the order they came."""
    lanes: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        lanes[message.partition].append(message.offset)
    return dict(lanes)


@asynccontextmanager
async def running(*clients: AsyncSkep) -> AsyncGenerator[None]:
    """Run the consumers of clients beside the block."""
    tasks = [asyncio.ensure_future(client.run()) for client in clients]
    try:
        yield
    finally:
        for client in clients:
            await client.stop()
        await asyncio.gather(*tasks)
