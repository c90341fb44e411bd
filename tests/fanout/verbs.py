"""Short functions for groups and their pending messages."""

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
SILENCE = 1000  # seconds: longer than any group survives with the defaults


async def kept(mq: AsyncSkep, partition: str = "Default", queue: str = Q) -> list[int]:
    """Return the offsets that are still stored, after retention has run."""
    await retain(mq)
    rows = [row for row in await mq.queue(queue).partitions() if row.partition == partition]
    return [offset for row in rows for offset in range(row.first_offset, row.last_offset + 1)]


async def let_die(mq: AsyncSkep, db: psycopg.Connection, *groups: str, queue: str = Q) -> None:
    """Let these groups be silent until they are dead; all others of the queue send a heartbeat."""
    pass_time(db, SILENCE)
    for group in {subscription.group for subscription in await mq.subscriptions(queue=queue)} - set(groups):
        await mq.heartbeat(group, queue)
    await detect_dead_groups(mq)
    assert {group: (await status(mq, group, queue)) for group in groups} == dict.fromkeys(groups, "DEAD")


async def status(mq: AsyncSkep, group: str, queue: str = Q) -> str:
    ((found),) = await mq.groups(group, queue)
    return found.status


async def missed(mq: AsyncSkep, queue: str = Q) -> dict[str, int]:
    """Return the number of messages that each group missed, for groups that missed any."""
    return {found.group: found.missed for found in await mq.groups(queue=queue) if found.missed}


async def pending(mq: AsyncSkep, partition: str = "Default", queue: str = Q) -> list[list[str]]:
    """Return the pending groups of each message."""
    return [message.pending_groups for message in await mq.message_status(queue, partition)]


def by_partition(messages: Iterable[Message]) -> dict[str, list[int]]:
    """Return the offsets of each partition, in the order of delivery."""
    partitions: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        partitions[message.partition].append(message.offset)
    return dict(partitions)


@asynccontextmanager
async def running(*clients: AsyncSkep) -> AsyncGenerator[None]:
    """Run the consumers of clients during the block."""
    tasks = [asyncio.ensure_future(client.run()) for client in clients]
    try:
        yield
    finally:
        for client in clients:
            await client.stop()
        await asyncio.gather(*tasks)
