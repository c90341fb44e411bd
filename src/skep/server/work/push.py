"""Pushes of many requests in one database call. Payloads stay bytes from the socket to PostgreSQL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.errors import InvalidArgument
from skep.server.work import calls, tracing
from skep.server.work.crypt import Keyring
from skep.server.work.sealed import SealedQueues

NOT_UTF8 = "Invalid JSON: not UTF-8"


class PushItem(msgspec.Struct, omit_defaults=True):
    """One message as `skep._push_messages()` takes it."""

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

    def text(self) -> bytes:
        """Return the payload as UTF-8, for a caller that stores something else in its place."""
        payload = bytes(self.payload)
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise InvalidArgument(NOT_UTF8) from None
        return payload


class Push(msgspec.Struct):
    """The messages of one request on their way into the database."""

    items: list[PushItem]
    encoded: str  # as JSON, comma-separated
    traceparent: str | None = None
    has_delays: bool = False

    @property
    def queues(self) -> set[str]:
        return {item.queue for item in self.items}


class DelayedPlace(NamedTuple):
    """The id of a delayed message, and when it is due: an ISO time in UTC."""

    id: str
    due_at: str


class Pushed(NamedTuple):
    """The places of the messages of a push, in their order. Delayed messages have no offset yet."""

    duplicates: Sequence[bool]
    partition_ids: Sequence[int]
    offsets: Sequence[int | None]
    delayed: Mapping[int, DelayedPlace]  # by the number of the message


_encoder = msgspec.json.Encoder()


def in_utc(instant: datetime | None) -> str | None:
    """Return a time as PostgreSQL reads it. A time without an offset is UTC."""
    if instant is None:
        return None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).isoformat()


def prepare(items: list[PushItem], traceparent: str | None = None) -> Push:
    """Encode messages for the database. Raise if a payload is not UTF-8: it was not read before."""
    try:
        encoded = str(memoryview(_encoder.encode(items))[1:-1], "utf-8")
    except UnicodeDecodeError:
        raise InvalidArgument(NOT_UTF8) from None
    return Push(items, encoded, traceparent, any(item.is_delayed for item in items))


def trace(items: list[PushItem], traceparent: str | None) -> None:
    """Note the trace of the request in the headers of messages that do not name one."""
    if traceparent is not None:
        for item in items:
            item.headers = {tracing.HEADER: traceparent, **(item.headers or {})}


async def seal(items: list[PushItem], sealed: SealedQueues, keyring: Keyring) -> None:
    """Encrypt the payloads of encrypted queues."""
    queues = await sealed.names()
    for item in items if queues else ():
        if item.queue in queues:
            payload, headers = keyring.seal(item.text(), item.queue)
            item.payload = msgspec.Raw(payload)
            item.headers = (item.headers or {}) | headers


def weigh(push: Push) -> int:
    return len(push.encoded)


class Pusher:
    """Stores the messages of several requests by one call."""

    def __init__(self, database: AsyncDatabase, count: Callable[[int], None]) -> None:
        self._database = database
        self._count = count

    async def __call__(self, pushes: Sequence[Push]) -> list[Pushed]:
        messages = f"[{','.join([push.encoded for push in pushes])}]"
        with tracing.span("push", {"skep.requests": len(pushes)}, (push.traceparent for push in pushes)):
            arguments = {"messages": messages, "has_delays": any(push.has_delays for push in pushes)}
            (row,) = await self._database.call(calls.PUSH, arguments, lambda *row: row)
        self._count(len(row[0]) - sum(row[0]))
        return list(_shared_out(pushes, *row))


def _shared_out(
    pushes: Sequence[Push],
    duplicates: Sequence[bool],
    partition_ids: Sequence[int],
    offsets: Sequence[int | None],
    delayed: Mapping[str, tuple[str, str]] | None,
) -> Iterable[Pushed]:
    start = 0
    for push in pushes:
        end = start + len(push.items)
        of_push = slice(start, end)
        yield Pushed(duplicates[of_push], partition_ids[of_push], offsets[of_push], places(delayed, start, end))
        start = end


def places(delayed: Mapping[str, tuple[str, str]] | None, start: int, end: int) -> dict[int, DelayedPlace]:
    """Return the delayed messages between two numbers of a call, numbered from 0."""
    if delayed is None:
        return {}
    return {int(n) - start: DelayedPlace(*place) for n, place in delayed.items() if start <= int(n) < end}
