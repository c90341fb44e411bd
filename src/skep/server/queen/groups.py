"""Consumer groups in Queen's shape: their progress, seek, and delete."""

from typing import Annotated, Any

import msgspec

from skep.server.http import lists
from skep.server.http.asgi import HttpError, bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, instant, reply
from skep.server.http.lists import ask
from skep.server.queen import calls

WHERE = "Must specify either 'toEnd': true or 'timestamp'"
POSITIONS = "`beginning`, `end`, an offset, or a time such as 2026-01-31T12:00:00Z"


class NewStart(msgspec.Struct, rename="camel"):
    """The new start of a group."""

    subscription_timestamp: str | None = None


class Seek(msgspec.Struct, rename="camel"):
    """The target of a seek: Queen's fields, or a position: beginning, end, an offset or a time."""

    to_end: bool = False
    timestamp: str | None = None
    position: str | Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None

    def place(self) -> str | None:
        if self.position not in (None, "") and (self.to_end or self.timestamp):
            raise bad_request("position stands alone, without toEnd and timestamp")
        if self.to_end:
            return "end"
        if self.timestamp:
            return instant(self.timestamp, "timestamp").isoformat()
        return _position(str(self.position)) if self.position not in (None, "") else None


def _position(given: str) -> str:
    if given.lower() in ("beginning", "end") or (given.isascii() and given.isdigit()):
        return given.lower()
    try:
        return instant(given, "position").isoformat()
    except HttpError:
        raise bad_request(f"position cannot be {given[:40]!r}; it is {POSITIONS}") from None


async def list_groups(call: Call) -> Reply:
    return await ask(call, calls.GROUPS, visible=await lists.visible(call))


async def lagging(call: Call) -> Reply:
    seconds = float(call.integer("minLagSeconds", 3600))
    return await ask(call, calls.LAGGING, seconds=seconds, visible=await lists.visible(call))


async def show(call: Call) -> Reply:
    return await ask(call, calls.GROUP, group=call.params["group"], visible=await lists.visible(call))


async def delete(call: Call) -> Reply:
    """Forget a group, on one queue or on all. Without its metadata it is brand new, else it starts where it did."""
    group, queue = call.params["group"], call.params.get("queue")
    forget = call.flag("deleteMetadata", default=True)
    deleted = await call.state.mq.delete_group(group, queue, keep_subscription=not forget)
    told = {"success": True, "consumerGroup": group, "deletedPartitions": deleted, "metadataDeleted": forget}
    return reply(told | ({"queueName": queue} if queue is not None else {}))


async def resubscribe(call: Call) -> Reply:
    group, wish = call.params["group"], await call.json(NewStart, default=NewStart())
    if not wish.subscription_timestamp:
        raise bad_request("Missing subscriptionTimestamp in request body")
    start = instant(wish.subscription_timestamp, "subscriptionTimestamp")
    changed = await call.state.admin.value(calls.RESUBSCRIBE, {"group": group, "start": start})
    told = {"success": True, "consumerGroup": group, "newTimestamp": wish.subscription_timestamp}
    return reply(told | {"rowsUpdated": changed})


async def seek(call: Call) -> Reply:
    group, queue = call.params["group"], call.params["queue"]
    wish = await call.json(Seek, default=Seek())
    place = wish.place()
    if place is None:
        raise bad_request(f"{WHERE}, or a 'position': {POSITIONS}")
    moved = await call.state.mq.seek(group, queue, place)
    call.state.pushed([queue])  # there may be something to get again
    told: dict[str, Any] = {"success": True, "consumerGroup": group, "queueName": queue, "seekToEnd": place == "end"}
    told["targetTimestamp"] = None if wish.to_end else wish.timestamp
    return reply(told | {"partitionsUpdated": moved.partitions})


async def seek_partition(call: Call) -> Reply:
    """Move to the end, as Queen does whatever is posted; or to a time or position, if one is."""
    group, queue, partition = (call.params[name] for name in ("group", "queue", "partition"))
    wish = await call.json(Seek, default=Seek())
    arguments = {"group": group, "queue": queue, "partition": partition, "position": wish.place() or "end"}
    rows = await call.state.admin.call(calls.SEEK_PARTITION, arguments, lambda *row: row)
    if not rows:
        return reply({"success": False, "error": "Partition not found", "code": "not_found"}, 404)
    call.state.pushed([queue])
    ((updated, moved_to),) = rows
    told: dict[str, Any] = {"success": True, "consumerGroup": group, "queueName": queue, "partitionName": partition}
    return reply(told | {"updated": updated > 0, "cursorMovedTo": moved_to})


async def refresh(call: Call) -> Reply:
    """Take a sample for the rates. Sizes and positions are never stale."""
    taken: str | None = await call.state.admin.value(calls.REFRESH, {})
    if taken is None:
        return reply({"skipped": True, "reason": "there was a sample a few seconds ago"})
    return Reply(200, taken.encode())


_GROUPS = "/api/v1/consumer-groups"
_FORGET = (Param("deleteMetadata", "boolean", "Forget where it starts as well; true if not given."),)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=_GROUPS,
        action="read",
        on="each",
        run=list_groups,
        summary="List groups, one entry for each queue.",
        answers={200: list[dict[str, Any]]},
    ),
    Endpoint(
        method="GET",
        path=f"{_GROUPS}/lagging",
        action="read",
        on="each",
        run=lagging,
        summary="List the partitions in which a group is behind, the worst first.",
        query=(Param("minLagSeconds", "integer", "Behind by this at least; 3600 if not given."),),
        answers={200: list[dict[str, Any]]},
    ),
    Endpoint(
        method="GET",
        path=f"{_GROUPS}/{{group}}",
        action="read",
        on="each",
        run=show,
        summary="Show a group: its partitions by queue.",
    ),
    Endpoint(
        method="DELETE",
        path=f"{_GROUPS}/{{group}}",
        action="admin",
        on="every",
        run=delete,
        summary="Forget a group.",
        query=_FORGET,
    ),
    Endpoint(
        method="DELETE",
        path=f"{_GROUPS}/{{group}}/queues/{{queue}}",
        action="admin",
        run=delete,
        summary="Forget a group on one queue.",
        query=_FORGET,
    ),
    Endpoint(
        method="POST",
        path=f"{_GROUPS}/{{group}}/subscription",
        action="seek",
        on="every",
        run=resubscribe,
        summary="Change where a group starts in partitions it has not met.",
        body=NewStart,
    ),
    Endpoint(
        method="POST",
        path=f"{_GROUPS}/{{group}}/queues/{{queue}}/seek",
        action="seek",
        run=seek,
        summary="Move a group on a queue: to the beginning, the end, a time or an offset.",
        body=Seek,
    ),
    Endpoint(
        method="POST",
        path=f"{_GROUPS}/{{group}}/queues/{{queue}}/partitions/{{partition}}/seek",
        action="seek",
        run=seek_partition,
        summary="Move a group on one partition, to the end if nothing is posted.",
        body=Seek,
        body_required=False,
    ),
    Endpoint(
        method="POST",
        path="/api/v1/stats/refresh",
        action="admin",
        on="every",
        run=refresh,
        summary="Take a sample of heads and cursors now.",
        body_required=False,
    ),
)
