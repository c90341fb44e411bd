"""Declares groups dead that give no sign of life."""

from skep.client import AsyncSkep


async def watch(mq: AsyncSkep) -> str | None:
    died = [f"{found.group} on {found.scope}" for found in await mq.detect_dead_groups() if found.died]
    return f"dead: {', '.join(died)}" if died else None
