"""Preview retention, or run it now."""

from skep.message import Retained, Swept
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply

LANES = 200
MOST = 10_000


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
    """Run retention in the small steps of upkeep."""
    return reply(await call.state.mq.sweep())


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/retention",
        action="read",
        on="each",
        run=report,
        summary="Show the messages that retention would delete now, and the rule.",
        query=(
            Param("queue", "string", "Of this queue only."),
            Param("limit", "integer", "At most this many partitions."),
        ),
        answers={200: list[Retained]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/retention/run",
        action="admin",
        run=run,
        summary="Run retention now, without waiting for upkeep.",
        answers={200: Swept},
    ),
)
