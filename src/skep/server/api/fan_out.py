"""Fan-out: the groups of a message, pending groups, and the groups that retention waits for."""

from uuid import UUID

from skep.message import DEFAULT_PARTITION, QUEUE_MODE, Blocked, Lag, MessageGroup, MessageStatus
from skep.server.http.access import require_on_partitions
from skep.server.http.asgi import HttpError
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.work import address

MOST = 10_000


async def message_groups(call: Call) -> Reply:
    id_ = call.params["message"]
    if not address.is_uuid(id_):
        raise HttpError(404, "Message not found", "not_found")
    await require_on_partitions(call, "read", {id_})
    return reply(await call.state.mq.message_groups(UUID(id_)))


async def message_status(call: Call) -> Reply:
    partition = call.text("partition") or DEFAULT_PARTITION
    limit = call.integer("limit", 100, least=1, most=MOST)
    first = call.integer("offset", 0)
    return reply(await call.state.mq.message_status(call.params["queue"], partition, first, limit))


async def blocked(call: Call) -> Reply:
    return reply(await call.state.mq.blocked(call.params["queue"]))


async def lag(call: Call) -> Reply:
    group = call.text("group") or QUEUE_MODE
    return reply(await call.state.mq.lag(group, call.params["queue"], call.text("partition")))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/messages/{message}/groups",
        action="read",
        on="each",
        run=message_groups,
        summary="Show each group that requires a message, and whether it has completed it.",
        shared=True,
        answers={200: list[MessageGroup], 404: None},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{queue}/messages",
        action="read",
        run=message_status,
        summary="Show for messages of a partition how many groups require and completed each, and who is pending.",
        shared=True,
        query=(
            Param("partition", "string", "`Default` if not given."),
            Param("offset", "integer", "From this offset on."),
            Param("limit", "integer", "At most this many; 100 if not given."),
        ),
        answers={200: list[MessageStatus]},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{queue}/blocked",
        action="read",
        run=blocked,
        summary="Show the groups that retention waits for.",
        answers={200: list[Blocked]},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{queue}/lag",
        action="read",
        run=lag,
        summary="Show the lag of a group in each partition.",
        query=(
            Param("group", "string", "The queue's own consumers if not given."),
            Param("partition", "string", "In this partition only."),
        ),
        answers={200: list[Lag]},
    ),
)
