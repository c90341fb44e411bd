"""POST /api/v1/push: payloads stay bytes from the socket to PostgreSQL, and many requests are one call."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Self

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.message import DEFAULT_PARTITION
from skep.server.http.asgi import HttpError, bad_request, decode
from skep.server.work import address, calls, tracing

NULL = msgspec.Raw(b"null")
EMPTY = msgspec.Raw(b"{}")
NOT_UTF8 = "Invalid JSON: not UTF-8"


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
    """One message of a transaction or a stream: there, without a payload it is an empty object."""

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: EMPTY)


class Body(msgspec.Struct):
    """What is posted."""

    items: list[Item]


class NewItem(msgspec.Struct, omit_defaults=True):
    """One message as `skep.push()` takes it."""

    queue: str
    partition: str
    payload: msgspec.Raw
    transaction_id: str | None = None
    trace_id: str | None = None
    headers: dict[str, Any] | None = None
    producer: str | None = None
    delay: float | None = None
    deliver_at: str | None = None

    @property
    def is_delayed(self) -> bool:
        return self.delay is not None or self.deliver_at is not None

    @classmethod
    def of(cls, item: Item, producer: str | None) -> Self:
        return cls(
            item.queue,
            item.partition if item.partition is not None else DEFAULT_PARTITION,
            item.payload,
            item.transaction_id or None,
            item.trace_id or None,
            item.headers,
            producer,
            item.delay,
            None if item.deliver_at is None else _in_utc(item.deliver_at),
        )


class Stored(
    msgspec.Struct, rename={"queue": "queueName", "camel_id": "transactionId", "due_at": "dueAt"}, omit_defaults=True
):
    """What became of one item. A delayed one has no offset yet, but the time when it is due."""

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
    """What became of an item that came during push maintenance: it is stored when that is over."""

    index: int
    status: Literal["buffered"]
    queue: str
    partition: str
    transaction_id: str | None = None


class Push(msgspec.Struct):
    """One request on its way into the database."""

    items: list[NewItem]
    encoded: str  # as JSON, comma-separated
    traceparent: str | None = None
    has_delays: bool = False


_decoder = msgspec.json.Decoder(Body)
_encoder = msgspec.json.Encoder()


def parse(body: bytes, producer: str | None, max_batch: int) -> list[NewItem]:
    """Read and check a body; the text of an error is the one Queen has for it, with the place."""
    return checked(decode(_decoder, body, _said).items, producer, max_batch)


def checked(items: Sequence[Item], producer: str | None, max_batch: int) -> list[NewItem]:
    if len(items) > max_batch:
        raise HttpError(413, f"{len(items)} items; at most {max_batch} fit into one request", "batch_too_large")
    for number, item in enumerate(items):
        if item.trace_id and not address.is_uuid(item.trace_id):
            raise bad_request(f"TraceId must be a UUID (item {number})")
        if item.headers and any(name.startswith("skep-") for name in item.headers):
            raise bad_request(f"headers that begin with skep- are the server's own (item {number})")
    return [NewItem.of(item, producer) for item in items]


def trace(items: list[NewItem], traceparent: str | None) -> None:
    """Note the trace of the request in the headers of its messages, where they do not name one."""
    if traceparent is not None:
        for item in items:
            item.headers = {tracing.HEADER: traceparent, **(item.headers or {})}


def _said(error: str) -> str:
    """Say what Queen says, and where: msgspec ends with "- at `$.items[3].queue`"."""
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


def prepare(items: list[NewItem], traceparent: str | None = None) -> Push:
    try:
        encoded = str(memoryview(_encoder.encode(items))[1:-1], "utf-8")
    except UnicodeDecodeError:  # only now: nobody has looked into the payloads so far
        raise bad_request(NOT_UTF8) from None
    return Push(items, encoded, traceparent, any(item.is_delayed for item in items))


def text_of(item: NewItem) -> bytes:
    """Return a payload that the database will not look into."""
    payload = bytes(item.payload)
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise bad_request(NOT_UTF8) from None
    return payload


def weigh(push: Push) -> int:
    return len(push.encoded)


class Pusher:
    """Stores the items of several requests by one call."""

    def __init__(self, database: AsyncDatabase, count: Callable[[int], None]) -> None:
        self._database = database
        self._count = count

    async def __call__(self, pushes: Sequence[Push]) -> list[list[Stored]]:
        messages = f"[{','.join([push.encoded for push in pushes])}]"
        with tracing.span("push", {"skep.requests": len(pushes)}, (push.traceparent for push in pushes)):
            arguments = {"messages": messages, "has_delays": any(push.has_delays for push in pushes)}
            ((duplicates, lanes, offsets, delayed),) = await self._database.call(calls.PUSH, arguments, _row)
        self._count(len(duplicates) - sum(duplicates))
        answers: list[list[Stored]] = []
        start = 0
        for push in pushes:
            end = start + len(push.items)
            places = zip(push.items, duplicates[start:end], lanes[start:end], offsets[start:end], strict=True)
            if delayed is None:
                answers.append([stored(index, *place) for index, place in enumerate(places)])
            else:
                answers.append(all_stored(places, delayed, start))
            start = end
        return answers


def _row(*columns: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return columns


def all_stored(
    places: Iterable[tuple[NewItem, bool, int, int | None]], delayed: Mapping[str, Sequence[str]] | None, start: int = 0
) -> list[Stored]:
    """Return the results of items of which some may be delayed: those have an id and a time by their number."""
    waiting = delayed or {}
    return [
        _delayed(index, item, duplicate, *waiting[str(start + index)])
        if offset is None
        else stored(index, item, duplicate, lane, offset)
        for index, (item, duplicate, lane, offset) in enumerate(places)
    ]


def _delayed(index: int, item: NewItem, duplicate: bool, id_: str, due_at: str) -> Stored:  # noqa: FBT001
    name = item.transaction_id or id_
    status = "duplicate" if duplicate else "delayed"
    due = f"{datetime.fromisoformat(due_at).isoformat(timespec='milliseconds')}Z"
    return Stored(index, status, name, name, item.queue, id_, item.trace_id, due_at=due)


def _in_utc(instant: datetime) -> str:
    """Return a time as PostgreSQL reads it; without an offset it is UTC."""
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).isoformat()


def stored(index: int, item: NewItem, duplicate: bool, lane: int, offset: int) -> Stored:  # noqa: FBT001
    id_ = address.message_id(lane, offset)
    name = item.transaction_id or id_
    return Stored(
        index,
        "duplicate" if duplicate else "queued",
        name,
        name,
        item.queue,
        id_,
        item.trace_id,
        offset,
        None if duplicate else address.partition_uuid(lane),
    )


def held(items: list[NewItem]) -> list[Held]:
    return [
        Held(index, "buffered", item.queue, item.partition, item.transaction_id) for index, item in enumerate(items)
    ]


def encode(answers: list[Stored]) -> bytes:
    return _encoder.encode(answers)
