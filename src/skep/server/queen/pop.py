"""GET /api/v1/pop…: Queen's three routes, with long polls that end when their client disconnects."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.message import QUEUE_MODE
from skep.scope import Scope
from skep.server.http.asgi import HttpError, bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, instant
from skep.server.http.members import Member
from skep.server.http.state import State
from skep.server.queen import calls
from skep.server.work.waiters import PopOptions

MAX_WAIT = 110.0  # seconds
AUTOPILOT = (200, 4)  # messages and partitions for a client that leaves the choice to the server
NOTHING: Mapping[str, bool] = {}
MODES = {"from_beginning": "all", "new-only": "new", "now": "new", "from_now": "new"} | {
    word: word for word in ("all", "new", "timestamp", "offset", "message_id")
}
_encode = msgspec.json.Encoder().encode


class Delivered(msgspec.Struct, rename="camel"):
    """A message and its lease."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: Any
    producer_sub: str | None
    created_at: str
    queue: str
    partition: str
    partition_id: str
    lease_id: str
    consumer_group: str
    offset: int
    delivery_attempt: int
    headers: dict[str, Any] | None


class Delivery(msgspec.Struct, rename="camel"):
    """The response of a pop. It names the first partition; each message names its own."""

    success: bool
    queue: str | None
    partition: str
    partition_id: str | None
    lease_id: str | None
    consumer_group: str
    messages: list[Delivered]
    partitions_claimed: int = 0
    conflation: bool = False


class Popped(NamedTuple):
    """The messages of one request as JSON, comma-separated. No lease: auto_ack."""

    request: int
    lease: UUID | None
    queue: str
    partition: str
    partition_id: UUID
    partitions: int
    messages: bytes
    sealed: bool
    size: int


class QueenPopper:
    """Pops messages in Queen's shape."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def pop(self, arguments: dict[str, Any]) -> list[Popped]:
        return await self._database.call(calls.POP, arguments, Popped, binary=True)

    async def release(self, popped: Popped) -> None:
        if popped.lease is not None:
            await self._database.value(calls.RELEASE, {"lease": popped.lease})


class QueenWaiters:
    """The requests of Queen's clients that wait for messages."""

    def __init__(self, state: State) -> None:
        self.waiters = state.wait_with(QueenPopper(state.database))

    async def drain(self) -> None:
        await self.waiters.close()


async def pop_queue(call: Call) -> Reply:
    return await _pop(call, queue=call.params["queue"], partition=call.params.get("partition"))


async def pop_any(call: Call) -> Reply:
    namespace, task = call.query.get("namespace"), call.query.get("task")
    if namespace is None and task is None:
        raise bad_request("namespace or task is required")
    return await _pop(call, queue=None, namespace=namespace, task=task)


async def _pop(call: Call, **place: str | None) -> Reply:
    options = _options(call, **place)
    if options.conflate:
        return await _pop_newest(call, options)
    return await _pop_options(call, options)


async def _pop_newest(call: Call, options: PopOptions) -> Reply:
    """Pop as the first pop of the group decided. A request that asks for the contrary gets a note and every message."""
    if options.scope.queue is None:
        raise bad_request("conflation needs a queue")
    if await call.state.database.value(calls.CONFLATION, options.arguments()):
        return await _pop_options(call, options, {"conflation": True})
    plain = options._replace(conflate=False)
    return await _pop_options(call, plain, {"conflation": False, "conflationConflict": True})


async def _pop_options(call: Call, options: PopOptions, said: Mapping[str, bool] = NOTHING) -> Reply:
    batch, partitions = _size(call)
    timeout = call.integer("timeout", 30_000) / 1000 if call.flag("wait") else 0.0
    popping = call.state.part(QueenWaiters).waiters.pop(options, batch, partitions, min(timeout, MAX_WAIT))
    with _member(call, options) as member:
        popped = await (popping if timeout == 0 else call.until_gone(popping))
    if popped is not None and call.gone:
        call.state.part(QueenWaiters).waiters.release(popped)
        popped = None
    member.messages += popped.size if popped is not None else 0
    return _reply(call, options, popped, said)


def _member(call: Call, options: PopOptions) -> Member:
    address = (call.scope["client"] or ("",))[0]
    return call.state.members.of(options.scope.queue or "", options.scope.group, address, call.identity.subject)


def _options(call: Call, **place: str | None) -> PopOptions:
    group = call.text("consumerGroup") or QUEUE_MODE
    auto_ack = call.flag("autoAck")
    conflate = call.flag("conflation")
    if conflate and (auto_ack or group == QUEUE_MODE):
        raise bad_request("conflation needs a consumerGroup, and no autoAck")
    mode, start = _start(call)
    lease = call.integer("leaseSeconds", 0)
    if group == QUEUE_MODE:
        mode = start = None
    scope = Scope(group=group, subscription_mode=mode, subscription_from=start, **place)
    return PopOptions(scope, float(lease) if lease else None, auto_ack, conflate)


def _start(call: Call) -> tuple[str | None, str | None]:
    """Return the mode and start of a new group. A time takes precedence over a mode."""
    word, start = call.text("subscriptionMode"), call.text("subscriptionFrom")
    mode = None if word is None else MODES.get(word.lower())
    if word is not None and mode is None:
        raise bad_request(f"unknown subscriptionMode {word[:40]!r}; it is one of {', '.join(sorted(MODES))}")
    if start is None or mode in ("offset", "message_id"):
        return mode, start
    return None, "now" if start.lower() == "now" else _time(start)


def _time(given: str) -> str:
    try:
        return instant(given.replace(" ", "+"), "subscriptionFrom").isoformat()
    except HttpError:
        allowed = "`now`, a time such as 2026-01-31T12:00:00Z, or what subscriptionMode offset or message_id needs"
        raise bad_request(f"subscriptionFrom cannot be {given[:40]!r}; it is {allowed}") from None


def _size(call: Call) -> tuple[int, int]:
    """Return batch and partitions: those of the request, else the server's choice."""
    usual = AUTOPILOT if call.flag("autopilot") else (1, 1)
    return (
        call.integer("batch", usual[0], least=1, most=call.state.config.max_batch),
        call.integer("partitions", usual[1], least=1, most=1000),
    )


def _reply(call: Call, options: PopOptions, popped: Popped | None, said: Mapping[str, bool]) -> Reply:
    if popped is None and call.state.part(QueenWaiters).waiters.paused and not options.conflate:
        return Reply(204)
    if popped is None:
        empty: dict[str, Any] = {
            "success": True,
            "queue": options.scope.queue,
            "partition": options.scope.partition or "",
            "partitionId": None,
            "leaseId": None,
            "consumerGroup": options.scope.group,
            "messages": [],
        }
        return Reply(200, _encode({**empty, **said}))
    call.state.meter.messages("popped", popped.size)
    head = {
        "success": True,
        "queue": popped.queue,
        "partition": popped.partition,
        "partitionId": str(popped.partition_id),
        "leaseId": "" if options.auto_ack else str(popped.lease),
        "consumerGroup": options.scope.group,
        "partitionsClaimed": popped.partitions,
        **said,
    }
    messages = call.state.keyring.open_all(popped.messages) if popped.sealed else popped.messages
    return Reply(200, b'%s,"messages":[%s]}' % (_encode(head)[:-1], messages))


_ANSWERS = {200: Delivery, 204: None}
_QUERY = (
    Param("batch", "integer", "At most this many messages, of all partitions together."),
    Param("partitions", "integer", "At most this many partitions."),
    Param("wait", "boolean", "Wait for messages, up to `timeout`."),
    Param("timeout", "integer", "Milliseconds to wait, 30000 if not given."),
    Param("consumerGroup", "string", "The group; the queue's own if not given."),
    Param("autoAck", "boolean", "Messages count as completed when they are delivered."),
    Param("subscriptionMode", "string", f"The start of a new group: {', '.join(sorted(MODES))}."),
    Param(
        "subscriptionFrom", "string", "`now` or a time, instead of a mode; an offset or message id beside such a one."
    ),
    Param("leaseSeconds", "integer", "Instead of the lease time of the queue."),
    Param("autopilot", "boolean", "Leave `batch` and `partitions` to the server."),
    Param("conflation", "boolean", "Deliver only the newest message of each partition."),
)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/pop/queue/{queue}",
        action="pop",
        run=pop_queue,
        summary="Pop messages of any partition of a queue.",
        query=_QUERY,
        answers=_ANSWERS,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/pop/queue/{queue}/partition/{partition}",
        action="pop",
        run=pop_queue,
        summary="Pop messages of one partition.",
        query=_QUERY,
        answers=_ANSWERS,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/pop",
        action="pop",
        run=pop_any,
        summary="Pop messages of any queue of a namespace and/or task.",
        query=(Param("namespace"), Param("task"), *_QUERY),
        answers=_ANSWERS,
    ),
)
