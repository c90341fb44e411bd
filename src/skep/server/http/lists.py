"""Helpers of routes that return lists: pages, time ranges, and the queues that the caller may see.

A caller who may not see every queue gets lists without the others. The names of the visible queues go into the query,
so that pages are full and sums are right.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import msgspec

from skep.server.http.asgi import HttpError, bad_request
from skep.server.http.endpoint import Call, Param, Reply, instant

Query = LiteralString

DEEPEST = 10_000  # the largest offset of a page; filters find what lies beyond it
LONGEST_PAGE = 1000
FIRST_YEAR, LAST_YEAR = 1970, 9000
SEALED = b'"skep-sealed"'

QUEUE_NAMES: Query = "SELECT skep._queue_names()"


PAGE = (
    Param("limit", "integer", f"At most this many, and never more than {LONGEST_PAGE}."),
    Param("offset", "integer", f"Leave out this many; at most {DEEPEST}."),
)
RANGE = (
    Param("from", help="The beginning, an hour ago if not given."),
    Param("to", help="The end, now if not given."),
)


def not_found(what: str) -> HttpError:
    return HttpError(404, f"{what} not found", "not_found")


async def ask(call: Call, query: Query, missing: str = "", /, **arguments: object) -> Reply:
    """Return the JSON of the database. No row is a 404."""
    return Reply(200, (await ask_text(call, query, missing, **arguments)).encode())


async def ask_text(call: Call, query: Query, missing: str = "", /, **arguments: object) -> str:
    answer: str | None = await call.state.admin.value(query, arguments)
    if answer is None:
        raise not_found(missing)
    return answer


async def visible(call: Call) -> list[str] | None:
    """Return the queues that the caller may see; None: all."""
    if call.identity.allows("read", None):
        return None
    names: list[str] | None = await call.state.admin.value(QUEUE_NAMES, {})
    return [name for name in names or () if call.identity.visible(name)]


async def scope(call: Call) -> dict[str, Any]:
    """Return the queue of a list, which the caller must be allowed to read, or the visible queues."""
    queue = call.text("queue")
    if queue is None:
        return {"queue": None, "visible": await visible(call)}
    call.identity.require("read", queue)
    return {"queue": queue, "visible": None}


def page(call: Call, default: int) -> dict[str, Any]:
    """Read limit and offset."""
    offset = call.integer("offset", 0)
    if offset > DEEPEST:
        raise bad_request(f"offset is at most {DEEPEST}; narrow the list by its filters instead")
    return {"limit": call.integer("limit", default, least=1, most=LONGEST_PAGE), "offset": offset}


def moment(call: Call, name: str) -> datetime | None:
    """Read a time. A `+` that was not encoded has become a space."""
    given = call.text(name)
    if given is None:
        return None
    time = instant(given.strip().replace(" ", "+"), name)
    if not FIRST_YEAR <= time.year <= LAST_YEAR:  # beyond these years Python or PostgreSQL cannot calculate
        raise bad_request(f"{name} is not a time from {FIRST_YEAR} to {LAST_YEAR}")
    return time


def time_range(call: Call) -> dict[str, Any]:
    until = moment(call, "to") or datetime.now(UTC)
    since = moment(call, "from") or until - timedelta(hours=1)
    if since > until:
        raise bad_request("from is later than to")
    return {"since": since, "until": until}


def open_rows(call: Call, answer: str, rows: str, field: str) -> bytes:
    """Decrypt the sealed payloads in a list of a response."""
    raw = answer.encode()
    if SEALED not in raw:
        return raw
    document = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    opened = call.state.keyring.open_all(bytes(document[rows]).strip()[1:-1], field)
    return msgspec.json.encode(document | {rows: msgspec.Raw(b"[%s]" % opened)})


def open_one(call: Call, answer: str, field: str) -> bytes:
    raw = answer.encode()
    return call.state.keyring.open_all(raw, field) if SEALED in raw else raw
