"""POST /api/v1/push, with Queen's names and errors. The items of transactions and streams are the same."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from skep.message import DEFAULT_PARTITION
from skep.server.http.asgi import HttpError, bad_request, decode, traceparent
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.work import address
from skep.server.work.push import DelayedPlace, Pushed, PushItem, in_utc, prepare, seal, trace

NULL = msgspec.Raw(b"null")
EMPTY = msgspec.Raw(b"{}")


class Item(msgspec.Struct, rename="camel"):
    """One message as Queen's clients send it; headers, delay (seconds) and deliverAt are Skep's own."""

    queue: str
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)  # the schema cannot show a raw default
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    headers: dict[str, Any] | None = None
    delay: float | None = None
    deliver_at: datetime | None = None


class BareItem(Item, rename="camel"):
    """One message of a transaction or a stream: there, the default payload is an empty object."""

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: EMPTY)


class PushBody(msgspec.Struct):
    """The body of a push."""

    items: list[Item]


class Stored(
    msgspec.Struct, rename={"queue": "queueName", "camel_id": "transactionId", "due_at": "dueAt"}, omit_defaults=True
):
    """The result of one item. A delayed message has no offset yet, but the time when it is due."""

    index: int
    status: Literal["queued", "duplicate", "delayed"]
    transaction_id: str
    camel_id: str
    queue: str
    message_id: str
    trace_id: str | None
    offset: int | None = None
    partition_id: str | None = None
    due_at: str | None = None


class Held(msgspec.Struct, rename={"transaction_id": "transactionId"}, omit_defaults=True):
    """The result of an item that came in push maintenance mode: it is stored when the mode ends."""

    index: int
    status: Literal["buffered"]
    queue: str
    partition: str
    transaction_id: str | None = None


_decoder = msgspec.json.Decoder(PushBody)
_encoder = msgspec.json.Encoder()


def read_items(items: Sequence[Item], producer: str | None, max_batch: int) -> list[PushItem]:
    """Check items and return them as the engine takes them."""
    if len(items) > max_batch:
        raise HttpError(413, f"{len(items)} items; at most {max_batch} fit into one request", "batch_too_large")
    for number, item in enumerate(items):
        if item.trace_id and not address.is_uuid(item.trace_id):
            raise bad_request(f"TraceId must be a UUID (item {number})")
        if item.headers and any(name.startswith("skep-") for name in item.headers):
            raise bad_request(f"headers that begin with skep- are the server's own (item {number})")
    return [_push_item(item, producer) for item in items]


def _push_item(item: Item, producer: str | None) -> PushItem:
    return PushItem(
        item.queue,
        item.partition if item.partition is not None else DEFAULT_PARTITION,
        item.payload,
        item.transaction_id or None,
        item.trace_id or None,
        item.headers,
        producer,
        item.delay,
        in_utc(item.deliver_at),
    )


def _shape_error(error: str) -> str:
    """Return Queen's text for a malformed body, with the place: msgspec ends with "- at `$.items[3].queue`"."""
    _, _, place = error.partition(" - at `$")
    place = place.rstrip("`")
    if not place.startswith(".items["):
        return "items array is required"
    item, _, field = place.removeprefix(".items[").partition("]")
    where = f" (item {item})"
    match field:
        case ".queue" | ".partition" | ".transactionId" | ".traceId":
            return f"{field[1].upper()}{field[2:]} must be a string{where}"
        case _ if "`queue`" in error:
            return f"Queue must be a string{where}"
        case _:
            return f"{error}{where}"


def stored(items: Sequence[PushItem], pushed: Pushed) -> Iterator[Stored]:
    """Yield the result of each item."""
    places = zip(items, pushed.duplicates, pushed.partition_ids, pushed.offsets, strict=True)
    for index, (item, duplicate, partition_id, offset) in enumerate(places):
        if offset is None:
            yield _delayed(index, item, pushed.delayed[index], duplicate=duplicate)
            continue
        id_ = address.message_id(partition_id, offset)
        name = item.transaction_id or id_
        status = "duplicate" if duplicate else "queued"
        partition = None if duplicate else address.partition_uuid(partition_id)
        yield Stored(index, status, name, name, item.queue, id_, item.trace_id, offset, partition)


def _delayed(index: int, item: PushItem, place: DelayedPlace, *, duplicate: bool) -> Stored:
    name = item.transaction_id or place.id
    status = "duplicate" if duplicate else "delayed"
    due = f"{datetime.fromisoformat(place.due_at).isoformat(timespec='milliseconds')}Z"
    return Stored(index, status, name, name, item.queue, place.id, item.trace_id, due_at=due)


def _held(items: list[PushItem]) -> list[Held]:
    return [
        Held(index, "buffered", item.queue, item.partition, item.transaction_id) for index, item in enumerate(items)
    ]


async def push_items(call: Call) -> Reply:
    body = decode(_decoder, await call.body(), _shape_error)
    items = read_items(body.items, call.identity.subject, call.state.config.max_batch)
    if not items:
        return Reply(201, b"[]")
    queues = {item.queue for item in items}
    for queue in queues:
        call.identity.require("push", queue)
    traced = traceparent(call.scope)
    trace(items, traced)
    await seal(items, call.state.sealed, call.state.keyring)
    push = prepare(items, traced)
    if call.state.maintenance.in_the_way and await call.state.maintenance.hold(push):
        return reply(_held(items), 201)
    pushed = await call.state.push(push)
    call.state.pushed(queues)
    return Reply(201, _encoder.encode(list(stored(items, pushed))))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/push",
        action="push",
        on="each",
        run=push_items,
        summary="Store messages. The response has one element for each item, in order.",
        body=PushBody,
        answers={201: (list[Stored], list[Held])},
    ),
)
