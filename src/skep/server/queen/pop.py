"""Popping: the three routes of Queen, with long polls that end when their client does."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from skep.server.http.asgi import Disconnected, HttpError, bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, instant
from skep.server.http.members import Member
from skep.server.work import calls
from skep.server.work.ack import QUEUE_MODE
from skep.server.work.waiters import Popped, Wanted

MAX_WAIT = 110.0  # seconds
AUTOPILOT = (200, 4)  # messages and partitions for a client that leaves the choice to the server
NOTHING: Mapping[str, bool] = {}
MODES = {"from_beginning": "all", "new-only": "new", "now": "new", "from_now": "new"} | {
    word: word for word in ("all", "new", "timestamp", "offset", "message_id")
}
_encode = msgspec.json.Encoder().encode


class Delivered(msgspec.Struct, rename="camel"):
    """A message, and whose lease it is under."""

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
    """What a pop gets. The first partition is named at the top; each message names its own."""

    success: bool
    queue: str | None
    partition: str
    partition_id: str | None
    lease_id: str | None
    consumer_group: str
    messages: list[Delivered]
    partitions_claimed: int = 0
    conflation: bool = False


async def pop_queue(call: Call) -> Reply:
    return await _pop(call, queue=call.params["queue"], partition=call.params.get("partition"))


async def pop_any(call: Call) -> Reply:
    namespace, task = call.query.get("namespace"), call.query.get("task")
    if namespace is None and task is None:
        raise bad_request("namespace or task is required")
    return await _pop(call, queue=None, namespace=namespace, task=task)


async def _pop(call: Call, **place: str | None) -> Reply:
    wanted = _wanted(call, **place)
    if wanted.conflate:
        return await _pop_newest(call, wanted)
    return await _pop_wanted(call, wanted)


async def _pop_newest(call: Call, wanted: Wanted) -> Reply:
    """Pop as the group's first contact decided: a request that wants it otherwise is told so, and gets everything."""
    if wanted.queue is None:
        raise bad_request("conflation needs a queue")
    if await call.state.database.value(calls.CONFLATION, wanted._asdict()):
        return await _pop_wanted(call, wanted, {"conflation": True})
    plain = wanted._replace(conflate=False)
    return await _pop_wanted(call, plain, {"conflation": False, "conflationConflict": True})


async def _pop_wanted(call: Call, wanted: Wanted, said: Mapping[str, bool] = NOTHING) -> Reply:
    batch, partitions = _size(call)
    timeout = call.integer("timeout", 30_000) / 1000 if call.flag("wait") else 0.0
    popping = call.state.lines.pop(wanted, batch, partitions, min(timeout, MAX_WAIT))
    with _member(call, wanted) as member:
        popped = await (popping if timeout == 0 else _until_gone(call, popping))
    if popped is not None and call.gone:
        call.state.lines.give_back(popped)
        popped = None
    member.messages += popped.size if popped is not None else 0
    return _reply(call, wanted, popped, said)


def _member(call: Call, wanted: Wanted) -> Member:
    address = (call.scope["client"] or ("",))[0]
    return call.state.members.of(wanted.queue or "", wanted.group, address, call.identity.subject)


def _wanted(call: Call, **place: str | None) -> Wanted:
    group = call.text("consumerGroup") or QUEUE_MODE
    auto_ack = call.flag("autoAck")
    conflate = call.flag("conflation")
    if conflate and (auto_ack or group == QUEUE_MODE):
        raise bad_request("conflation needs a consumerGroup, and no autoAck")
    mode, start = _birth(call)
    lease = call.integer("leaseSeconds", 0)
    return Wanted(
        queue=place.get("queue"),
        group=group,
        partition=place.get("partition"),
        namespace=place.get("namespace"),
        task=place.get("task"),
        lease_time=float(lease) if lease else None,
        auto_ack=auto_ack,
        mode=None if group == QUEUE_MODE else mode,
        start=None if group == QUEUE_MODE else start,
        conflate=conflate,
    )


def _birth(call: Call) -> tuple[str | None, str | None]:
    """Return where a new group begins, as mode and start. A time is the more exact wish; no wish is the default's."""
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
    """Return batch and partitions: what the client says, else what the server finds good."""
    usual = AUTOPILOT if call.flag("autopilot") else (1, 1)
    return (
        call.integer("batch", usual[0], least=1, most=call.state.config.max_batch),
        call.integer("partitions", usual[1], least=1, most=1000),
    )


async def _until_gone(call: Call, popping: Any) -> Popped | None:  # noqa: ANN401
    """Wait for messages as long as the client waits for them."""
    pop = asyncio.ensure_future(popping)
    await asyncio.sleep(0)
    gone = asyncio.ensure_future(call.disconnected())
    try:
        await asyncio.wait((pop, gone), return_when=asyncio.FIRST_COMPLETED)
        if not pop.done():
            raise Disconnected
        return pop.result()
    finally:
        gone.cancel()
        if not pop.done():
            pop.cancel()


def _reply(call: Call, wanted: Wanted, popped: Popped | None, said: Mapping[str, bool]) -> Reply:
    if popped is None and call.state.lines.paused and not wanted.conflate:
        return Reply(204)
    if popped is None:
        empty: dict[str, Any] = {
            "success": True,
            "queue": wanted.queue,
            "partition": wanted.partition or "",
            "partitionId": None,
            "leaseId": None,
            "consumerGroup": wanted.group,
            "messages": [],
        }
        return Reply(200, _encode({**empty, **said}))
    call.state.meter.messages("popped", popped.size)
    head = {
        "success": True,
        "queue": popped.queue,
        "partition": popped.partition,
        "partitionId": str(popped.partition_id),
        "leaseId": "" if wanted.auto_ack else str(popped.lease),
        "consumerGroup": wanted.group,
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
    Param("consumerGroup", "string", "Whose position counts; the queue's own if not given."),
    Param("autoAck", "boolean", "The delivered count as completed at once."),
    Param("subscriptionMode", "string", f"Where a group that is new here starts: {', '.join(sorted(MODES))}."),
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
        summary="Take messages of any partition of a queue.",
        query=_QUERY,
        answers=_ANSWERS,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/pop/queue/{queue}/partition/{partition}",
        action="pop",
        run=pop_queue,
        summary="Take messages of one partition.",
        query=_QUERY,
        answers=_ANSWERS,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/pop",
        action="pop",
        run=pop_any,
        summary="Take messages of any queue of a namespace and/or task.",
        query=(Param("namespace"), Param("task"), *_QUERY),
        answers=_ANSWERS,
    ),
)
