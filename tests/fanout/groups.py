"""Short functions for several groups: pending groups, kept messages, dead groups."""

import asyncio
from typing import Any

import psycopg

from skep import AsyncSkep
from tests.client.verbs import until
from tests.engine.verbs import pass_time

Q = "orders"
HOUR = 3600
AT_ONCE: Any = {"completed_retention_seconds": 0}
MORTAL: Any = {"heartbeat_interval": 10, "heartbeat_timeout": 20, "miss_threshold": 1}  # dies long before the others


async def subscribe(mq: AsyncSkep, *groups: str, queue: str = Q, **options: Any) -> None:
    for group in groups:
        await mq.subscribe(group, queue, **options)


async def fan_out(mq: AsyncSkep, queue: str = Q, partition: str = "Default") -> list[tuple[int, int, list[str]]]:
    """Return for each message the number of required and of completed groups, and the pending groups."""
    rows = await mq.message_status(queue, partition)
    return [(row.required_consumer_groups, row.completed_consumer_groups, row.pending_groups) for row in rows]


async def pending(mq: AsyncSkep, queue: str = Q, partition: str = "Default") -> list[list[str]]:
    return [pending for _, _, pending in await fan_out(mq, queue, partition)]


async def kept(mq: AsyncSkep, queue: str = Q, partition: str = "Default") -> list[int]:
    """Return the offsets of the messages that are still stored."""
    return [row.offset for row in await mq.message_status(queue, partition, limit=100_000)]


async def statuses(mq: AsyncSkep, queue: str = Q) -> dict[str, str]:
    return {group.group: group.status for group in await mq.groups(queue=queue)}


async def died(mq: AsyncSkep) -> list[str]:
    """Run the detection of dead groups once; return the groups that died."""
    return sorted(found.group for found in await mq.detect_dead_groups() if found.died)


async def let_die(mq: AsyncSkep, db: psycopg.Connection) -> list[str]:
    """Let enough time pass for MORTAL groups to die, and no others; return who died."""
    pass_time(db, 31)
    return await died(mq)


async def run_until(mq: AsyncSkep, consumer: Any, group: str = "g", queue: str = Q) -> None:
    """Run a consumer until the backlog of its group is empty."""
    running = asyncio.create_task(consumer.run())

    async def through() -> bool:
        partitions = await mq.lag(group, queue)
        return bool(partitions) and not any(partition.lag for partition in partitions)

    await until(through, f"{group} to be through")
    await consumer.stop()
    await running


def end_waiting_sessions(db: psycopg.Connection) -> bool:
    """End the sessions that wait for a lock; return true if there were any."""
    query = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
    """
    return bool(db.execute(query).fetchall())
