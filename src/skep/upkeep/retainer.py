"""Deletes what retention allows: page by page over all lanes, in small transactions; it can stop anywhere and go on."""

from skep.client import AsyncSkep

LANES = 200
MESSAGES = 10_000  # of one lane in one transaction


async def retain(mq: AsyncSkep) -> str | None:
    lane = deleted = missed = 0
    while lanes := await mq.lanes_after(lane, LANES):
        lane = lanes[-1]
        while lanes:
            done = await mq.retain(lanes, max_messages=MESSAGES)
            deleted += sum(row.messages for row in done)
            missed += sum(row.missed for row in done)
            lanes = [row.partition_id for row in done if row.messages >= MESSAGES]  # these may have more
    dropped = await mq.drop_idle_partitions()
    if not (deleted or dropped):
        return None
    return f"deleted {deleted:,} messages ({missed:,} were missed by a group), dropped {dropped:,} idle partitions"
