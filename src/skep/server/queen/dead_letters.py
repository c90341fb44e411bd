"""List and replay dead letters, as Queen's clients do."""

from typing import Any

import msgspec

from skep.message import Redriven
from skep.server.http import lists
from skep.server.http.asgi import bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.http.lists import PAGE, not_found
from skep.server.queen import calls
from skep.server.work import address

LONGEST_NUMBER = 18  # digits of what surely is a bigint


class Replay(msgspec.Struct, rename="camel"):
    """The target of a replay: the group of the dead letter, or a queue; and the group of the dead letters.

    `payload` goes in place of the one it had.
    """

    queue: str | None = None
    consumer_group: str | None = None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


async def list_dead_letters(call: Call) -> Reply:
    answer = await lists.ask_text(
        call,
        calls.DEAD_LETTERS,
        group=call.text("consumerGroup"),
        partition=call.text("partition"),
        since=lists.moment(call, "from"),
        until=lists.moment(call, "to"),
        **await lists.scope(call),
        **lists.page(call, 100),
    )
    return Reply(200, lists.open_rows(call, answer, "messages", "data"))


async def replay(call: Call) -> Reply:
    """Find it by its own number, or by the id of its message, which several groups may have given up."""
    named = call.params["id"]
    wish = await call.json(Replay, default=Replay())
    number = int(named) if named.isascii() and named.isdigit() and len(named) <= LONGEST_NUMBER else None
    message_id = named if address.is_uuid(named) else None
    if number is None and wish.payload is not msgspec.UNSET:
        raise bad_request("a payload is for one dead letter: name it by its number")
    which = {"id": number, "message_id": message_id, "group": wish.consumer_group}
    driven = await redrive(call, to_queue=wish.queue, payload=wish.payload, **which)
    return reply({"success": True, "id": named, "redriven": driven})


async def redrive(
    call: Call,
    *,
    to_queue: str | None = None,
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
    **named: object,
) -> list[dict[str, object]]:
    """Drive what is named again; 404 if there is no such dead letter, also if somebody else has just driven it."""
    which = {"id": None, "message_id": None, "partition_id": None, "transaction_id": None, "group": None} | named
    letters = await call.state.admin.call(calls.DEAD_LETTERS_OF, which, lambda *row: row)
    for _, queue in letters:
        call.identity.require("redrive", queue)
    if to_queue is not None:
        call.identity.require("push", to_queue)
        for _, queue in letters:
            call.identity.require("read", queue)  # or he could send what he may not see to where he may
    done_by = call.identity.subject or "http"
    if letters and payload is not msgspec.UNSET:
        driven = await _redrive_edited(call, letters[0], bytes(payload), to_queue=to_queue, done_by=done_by)
    else:
        driven = await call.state.mq.redrive(ids=[id_ for id_, _ in letters], to_queue=to_queue, done_by=done_by)
    if not driven:
        raise not_found("Dead letter")
    call.state.wake({to_queue} if to_queue else {letter.queue for letter in driven})
    return [
        {"dlqId": letter.id, "consumerGroup": letter.group, "queue": to_queue or letter.queue, "id": letter.message_id}
        for letter in driven
    ]


async def _redrive_edited(
    call: Call, letter: tuple[int, str], payload: bytes, *, to_queue: str | None, done_by: str
) -> list[Redriven]:
    """Drive one letter with another payload, which is as good as a push, and is sealed like one."""
    id_, queue = letter
    goal = to_queue or queue
    call.identity.require("push", goal)
    headers: dict[str, Any] | None = None
    if goal in await call.state.sealed.names():
        payload, headers = call.state.keyring.seal(payload, goal)
    arguments = {"id": id_, "to_queue": to_queue, "done_by": done_by, "payload": _text(payload)}
    seal = None if headers is None else msgspec.json.encode(headers).decode()
    return await call.state.admin.call(calls.REDRIVE_EDITED, arguments | {"headers": seal}, Redriven)


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise bad_request("the payload is not UTF-8") from None


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/dlq",
        action="read",
        on="each",
        run=list_dead_letters,
        summary="List dead letters, newest first.",
        query=(
            Param("queue"),
            Param("consumerGroup"),
            Param("partition"),
            Param("from", help="Failed then or later."),
            Param("to", help="Failed then or earlier."),
            *PAGE,
        ),
    ),
    Endpoint(
        method="POST",
        path="/api/v1/dlq/{id}/replay",
        action="redrive",
        on="each",
        run=replay,
        summary="Drive a dead letter again, or all of a message: to the group that gave it up, or to another queue.",
        body=Replay,
        body_required=False,
    ),
)
