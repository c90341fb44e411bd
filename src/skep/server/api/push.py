"""Push messages to a queue."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from skep.message import DEFAULT_PARTITION
from skep.server.http.asgi import HttpError, bad_request, traceparent
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.work import address
from skep.server.work.push import Pushed, PushItem, in_utc, prepare, seal, trace


class PushMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message to push. `delay` (seconds) or `deliver_at` makes it a delayed message."""

    payload: msgspec.Raw
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    trace_id: str | None = None
    headers: dict[str, Any] | None = None
    delay: float | None = None
    deliver_at: datetime | None = None


class PushMessages(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a push."""

    messages: list[PushMessage]


class PushedMessage(msgspec.Struct, omit_defaults=True):
    """The place of a stored message. `duplicate`: its transaction id was known, and this is the stored message."""

    status: Literal["queued", "duplicate", "delayed", "held"]
    id: str | None = None
    partition_id: int | None = None
    offset: int | None = None
    due_at: str | None = None


class PushedMessages(msgspec.Struct):
    """One result for each message of a push, in order."""

    messages: list[PushedMessage]


def read_messages(call: Call, queue: str, messages: list[PushMessage]) -> list[PushItem]:
    """Check messages and return them as the engine takes them."""
    most = call.state.config.max_batch
    if len(messages) > most:
        raise HttpError(413, f"at most {most} messages fit into one request, got {len(messages)}", "batch_too_large")
    return [_item(number, queue, message, call.identity.subject) for number, message in enumerate(messages)]


def _item(number: int, queue: str, message: PushMessage, producer: str | None) -> PushItem:
    if message.trace_id is not None and not address.is_uuid(message.trace_id):
        raise bad_request(f"item {number}: trace_id must be a UUID, got {message.trace_id[:40]!r}")
    if message.headers and any(name.startswith("skep-") for name in message.headers):
        raise bad_request(f"item {number}: headers that begin with skep- are reserved for the server")
    return PushItem(
        queue,
        message.partition,
        message.payload,
        message.transaction_id,
        message.trace_id,
        message.headers,
        producer,
        message.delay,
        in_utc(message.deliver_at),
    )


def results(pushed: Pushed) -> Iterator[PushedMessage]:
    """Yield the result of each message."""
    places = zip(pushed.duplicates, pushed.partition_ids, pushed.offsets, strict=True)
    for number, (duplicate, partition_id, offset) in enumerate(places):
        if offset is None:
            delayed = pushed.delayed[number]
            status = "duplicate" if duplicate else "delayed"
            yield PushedMessage(status, delayed.id, partition_id, due_at=f"{delayed.due_at}Z")
        else:
            status = "duplicate" if duplicate else "queued"
            yield PushedMessage(status, address.message_id(partition_id, offset), partition_id, offset)


async def push_messages(call: Call) -> Reply:
    queue = call.params["queue"]
    items = read_messages(call, queue, (await call.json(PushMessages)).messages)
    if not items:
        return reply(PushedMessages([]), 201)
    traced = traceparent(call.scope)
    trace(items, traced)
    await seal(items, call.state.sealed, call.state.keyring)
    push = prepare(items, traced)
    if call.state.maintenance.in_the_way and await call.state.maintenance.hold(push):
        return reply(PushedMessages([PushedMessage("held") for _ in items]), 202)
    pushed = await call.state.push(push)
    call.state.pushed([queue])
    return reply(PushedMessages(list(results(pushed))), 201)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/queues/{queue}/messages",
        action="push",
        run=push_messages,
        summary="Push messages. In push maintenance mode they are held, and stored when the mode ends.",
        body=PushMessages,
        answers={201: PushedMessages, 202: PushedMessages},
    ),
)
