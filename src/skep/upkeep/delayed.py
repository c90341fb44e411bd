"""Appends delayed messages that are due to their partitions."""

from skep.client import AsyncSkep


async def append(mq: AsyncSkep) -> str | None:
    messages = 0
    while appended := (await mq.append_delayed()).messages:
        messages += appended
    return f"appended {messages:,} delayed messages" if messages else None
