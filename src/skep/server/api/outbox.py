"""The state of the outbox."""

from skep.message import OutboxStatus
from skep.server.http.endpoint import Call, Endpoint, Reply, reply


async def show(call: Call) -> Reply:
    return reply(await call.state.mq.outbox_status())


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/outbox",
        action="read",
        on="every",
        run=show,
        summary="Show the rows of the outbox: of open transactions, and committed rows that are not published yet.",
        answers={200: OutboxStatus},
    ),
)
