"""The outbox: what is in it that is not published."""

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
        summary="Show what is in the outbox: of open transactions, and rows that were committed and not published.",
        answers={200: OutboxStatus},
    ),
)
