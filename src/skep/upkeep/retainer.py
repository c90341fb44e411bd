"""Deletes what retention allows, in small transactions."""

from skep.client import AsyncSkep


async def retain(mq: AsyncSkep) -> str | None:
    swept = await mq.sweep()
    if not (swept.messages or swept.dropped_partitions):
        return None
    deleted = f"deleted {swept.messages:,} messages ({swept.missed:,} were missed by a group)"
    return f"{deleted}, dropped {swept.dropped_partitions:,} idle partitions"
