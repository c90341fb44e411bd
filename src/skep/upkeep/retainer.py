"""Deletes what retention allows, in small transactions."""

from time import monotonic

from skep.client import AsyncSkep

LONGEST = 5.0  # seconds that a run goes on while there is more to delete


async def retain(mq: AsyncSkep) -> str | None:
    end = monotonic() + LONGEST
    messages = missed = dropped = 0
    while True:
        swept = await mq.sweep_due()
        messages += swept.messages
        missed += swept.missed
        dropped += swept.dropped_partitions
        if monotonic() > end or not (swept.messages or swept.dropped_partitions):
            break
    if not (messages or dropped):
        return None
    return f"deleted {messages:,} messages ({missed:,} were missed by a group), dropped {dropped:,} idle partitions"
