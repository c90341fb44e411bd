"""Retention: what it would delete, and do it now."""

import msgspec

from skep.message import Retained
from skep.server.endpoint import Call, Endpoint, Param, Reply, reply

LANES = 200
MESSAGES = 10_000  # of one lane in one transaction
MOST = 10_000


class Swept(msgspec.Struct):
    """What retention took."""

    messages: int
    missed: int
    dropped_partitions: int


async def report(call: Call) -> Reply:
    queue, limit = call.text("queue"), call.integer("limit", 1000, least=1, most=MOST)
    found: list[Retained] = []
    lane = 0
    while len(found) < limit and (lanes := await call.state.mq.lanes_after(lane, LANES)):
        lane = lanes[-1]
        rows = await call.state.mq.retain(lanes, dry_run=True)
        found += [row for row in rows if queue in (None, row.queue) and call.identity.visible(row.queue)]
    return reply(found[:limit])


async def run(call: Call) -> Reply:
    """Do what upkeep does, in the same small steps."""
    lane = messages = missed = 0
    mq = call.state.mq
    while lanes := await mq.lanes_after(lane, LANES):
        lane = lanes[-1]
        while lanes:
            done = await mq.retain(lanes, max_messages=MESSAGES)
            messages += sum(row.messages for row in done)
            missed += sum(row.missed for row in done)
            lanes = [row.partition_id for row in done if row.messages >= MESSAGES]
    return reply(Swept(messages, missed, await mq.drop_idle_partitions()))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/retention",
        action="read",
        on="each",
        run=report,
        summary="Show what retention would delete now, and by which rule.",
        query=(
            Param("queue", "string", "Of this queue only."),
            Param("limit", "integer", "At most so many partitions."),
        ),
        answers={200: list[Retained]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/retention/run",
        action="admin",
        run=run,
        summary="Delete what retention allows, without waiting for upkeep.",
        answers={200: Swept},
    ),
)
