"""Messages outside of any group: list, show, delete, replay, dead-letter, and read by offset."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from skep.server.http import lists
from skep.server.http.access import require_on_partitions
from skep.server.http.asgi import HttpError, bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.http.lists import PAGE, RANGE, ask_text, not_found
from skep.server.queen import calls
from skep.server.queen.dead_letters import redrive
from skep.server.work import address

STATUSES = ("pending", "processing", "completed", "dead_letter")
BURIED = "moved to the dead letters by an administrator"
MOST_ENTRIES = 100
MOST_RECORDS = 1000
MOST_BYTES = 16 * 1024 * 1024


class Buried(msgspec.Struct):
    """The error of a message that is dead-lettered."""

    error: str = BURIED


class FetchEntry(msgspec.Struct, rename="camel"):
    """A position in one partition, and how many messages to read."""

    queue: str
    partition: str
    offset: int
    max_bytes: int = 1024 * 1024


class Fetch(msgspec.Struct, rename="camel"):
    """The body of a read by offset."""

    entries: list[FetchEntry]
    max_bytes: int = MOST_BYTES


class ChangedEntry(msgspec.Struct):
    """Of which queue, since when, and behind which partition of the page before."""

    queue: str
    since: datetime | None = None
    after: str | None = None
    limit: int = 1000


class Changed(msgspec.Struct):
    """The body of a request for changed partitions."""

    entries: list[ChangedEntry]


async def list_messages(call: Call) -> Reply:
    status = call.text("status")
    if status is not None and status not in STATUSES:
        raise bad_request(f"status is one of {', '.join(STATUSES)}")
    times = lists.time_range(call)
    return await lists.ask(
        call,
        calls.MESSAGES,
        partition=call.text("partition"),
        namespace=call.text("ns"),
        task=call.text("task"),
        status=status,
        since=times["since"],
        until=end_of_minute(times["until"]),
        **await lists.scope(call),
        **lists.page(call, 200),
    )


def end_of_minute(time: datetime) -> datetime:
    """Round up as Queen does, so that a list to now has what was pushed a moment ago, whatever the clocks say."""
    return time.replace(second=0, microsecond=0) + timedelta(minutes=1)


async def place(call: Call) -> dict[str, Any]:
    """Return which message the path names; what is no UUID is no partition."""
    partition, transaction = call.params["partition"], call.params["transaction"]
    if not address.is_uuid(partition):
        raise not_found("Message")
    return {"partition_id": partition, "transaction_id": transaction}


async def show(call: Call) -> Reply:
    named = await place(call)
    await require_on_partitions(call, "read", [named["partition_id"]])
    return Reply(200, lists.open_one(call, await ask_text(call, calls.MESSAGE, "Message", **named), "payload"))


async def delete(call: Call) -> Reply:
    named = await place(call)
    await require_on_partitions(call, "redrive", [named["partition_id"]])
    if not await call.state.admin.value(calls.DELETE_MESSAGE, named):
        raise not_found("Message")
    return _done(named, message="Message deleted")


async def retry(call: Call) -> Reply:
    """Drive the dead letters of a message again, each to its group alone."""
    named = await place(call)
    driven = await redrive(call, **named)
    return _done(named, message="Message is delivered again", redriven=driven)


async def bury(call: Call) -> Reply:
    named = await place(call)
    await require_on_partitions(call, "redrive", [named["partition_id"]])
    wish = await call.json(Buried, default=Buried())
    dead: int | None = await call.state.admin.value(calls.DEAD_LETTER, named | {"error": wish.error})
    if dead is None:
        raise not_found("Message")
    return _done(named, message="Message moved to the dead letters", deadLetters=dead)


def _done(named: dict[str, Any], **more: object) -> Reply:
    told = {"partitionId": named["partition_id"], "transactionId": named["transaction_id"]}
    return reply({"success": True} | told | more)


async def fetch(call: Call) -> Reply:
    wish = await call.json(Fetch)
    _check_entries(call, wish.entries)
    arguments = {
        "queues": [entry.queue for entry in wish.entries],
        "partitions": [entry.partition for entry in wish.entries],
        "offsets": [entry.offset for entry in wish.entries],
        "sizes": [entry.max_bytes for entry in wish.entries],
        "size": min(max(wish.max_bytes, 1), MOST_BYTES),
        "limit": MOST_RECORDS,
    }
    fetched = await call.state.admin.call(calls.FETCH, arguments, str)
    entries = [lists.open_rows(call, entry, "records", "payload") for entry in fetched]
    return Reply(200, b'{"entries":[%s]}' % b",".join(entries))


async def changed(call: Call) -> Reply:
    """Tell the safe time of before looking: what is written later is found by the next call that asks from there."""
    wish = await call.json(Changed)
    _check_entries(call, wish.entries)
    safe: datetime = await call.state.admin.value(calls.SAFE_TIME, {})
    entries = [await _changed(call, entry) for entry in wish.entries]
    return reply({"safeTime": f"{safe.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z", "entries": entries})


async def _changed(call: Call, entry: ChangedEntry) -> dict[str, Any]:
    since = entry.since if entry.since is None or entry.since.tzinfo else entry.since.replace(tzinfo=UTC)
    arguments = {"since": since, "after": entry.after, "limit": min(max(entry.limit, 1), lists.DEEPEST)}
    found: str | None = await call.state.admin.value(calls.CHANGED, arguments | {"queue": entry.queue})
    if found is None:
        return {"partitions": [], "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    answer: dict[str, Any] = msgspec.json.decode(found)
    return answer if answer["next"] is not None else {"partitions": answer["partitions"]}


def _check_entries(call: Call, entries: list[FetchEntry] | list[ChangedEntry]) -> None:
    if len(entries) > MOST_ENTRIES:
        raise HttpError(413, f"at most {MOST_ENTRIES} entries fit into one request", "batch_too_large")
    for entry in entries:
        call.identity.require("read", entry.queue)


_ONE = "/api/v1/messages/{partition}"

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/messages",
        action="read",
        on="each",
        run=list_messages,
        summary="List messages of the last hour, or of another time, newest first.",
        shared=True,
        query=(
            Param("queue"),
            Param("partition"),
            Param("ns", help="The namespace."),
            Param("task"),
            Param("status", help=f"One of {', '.join(STATUSES)}."),
            *RANGE,
            *PAGE,
        ),
    ),
    Endpoint(
        method="GET",
        path=f"{_ONE}/{{transaction...}}",
        action="read",
        on="each",
        run=show,
        summary="Show one message with its payload, and how far each group is with it.",
    ),
    Endpoint(
        method="DELETE",
        path=f"{_ONE}/{{transaction...}}",
        action="redrive",
        on="each",
        run=delete,
        summary="Delete the content of a message. It is no longer delivered.",
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/{{transaction}}/retry",
        action="redrive",
        on="each",
        run=retry,
        summary="Drive the dead letters of a message again, each to the group that gave it up.",
        body_required=False,
    ),
    Endpoint(
        method="POST",
        path=f"{_ONE}/{{transaction}}/dlq",
        action="redrive",
        on="each",
        run=bury,
        summary="Move a message to the dead letters of every group that is not done with it.",
        body=Buried,
        body_required=False,
    ),
    Endpoint(
        method="POST",
        path="/api/v1/fetch",
        action="read",
        on="each",
        run=fetch,
        summary="Read messages by their offsets, outside of any group.",
        body=Fetch,
    ),
    Endpoint(
        method="POST",
        path="/api/v1/partitions/changed",
        action="read",
        on="each",
        run=changed,
        summary="List the partitions of queues that were written to since a time.",
        body=Changed,
    ),
)
