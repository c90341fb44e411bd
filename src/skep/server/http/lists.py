"""Every call of the admin plane, by name, and what its routes have in common.

Who may not see every queue gets lists without the others: the names of those he may see go into the query, so that
pages are full and sums are right.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import msgspec

from skep.server.http.asgi import HttpError, bad_request
from skep.server.http.endpoint import Call, Param, Reply, instant

Query = LiteralString

DEEPEST = 10_000  # how far an offset may go: what lies there is found by filters, not by paging
LONGEST_PAGE = 1000
FIRST_YEAR, LAST_YEAR = 1970, 9000
SEALED = b'"skep-sealed"'

QUEUE_NAMES: Query = "SELECT skep._queen_queue_names()"

MESSAGES: Query = """
    SELECT skep._queen_messages(%(queue)s, %(partition)s, %(namespace)s, %(task)s, %(status)s, %(since)s, %(until)s,
        %(visible)s::text[], %(limit)s, %(offset)s)::text
"""
MESSAGE: Query = "SELECT skep._queen_message(%(partition_id)s::uuid, %(transaction_id)s)::text"
DELETE_MESSAGE: Query = "SELECT skep._queen_delete_message(%(partition_id)s::uuid, %(transaction_id)s)"
BURY: Query = "SELECT skep._queen_dead_letter(%(partition_id)s::uuid, %(transaction_id)s, %(error)s)"
FETCH: Query = """
    SELECT fetched::text FROM skep._queen_fetch(%(queues)s::text[], %(partitions)s::text[], %(offsets)s::bigint[],
        %(sizes)s::bigint[], %(size)s, %(limit)s) AS fetched
"""
SAFE_TIME: Query = "SELECT skep._queen_safe_time()"
CHANGED: Query = "SELECT skep._queen_changed(%(queue)s, %(since)s, %(after)s, %(limit)s)::text"

DEAD_LETTERS: Query = """
    SELECT skep._queen_dead_letters(%(queue)s, %(group)s, %(partition)s, %(since)s, %(until)s, %(visible)s::text[],
        %(limit)s, %(offset)s)::text
"""
DEAD_LETTERS_OF: Query = """
    SELECT id, queue FROM skep._queen_dead_letters_of(%(id)s, %(message_id)s::uuid, %(partition_id)s::uuid,
        %(transaction_id)s, %(group)s)
"""
REDRIVE_EDITED: Query = """
    SELECT * FROM skep.redrive(ids => ARRAY[%(id)s]::bigint[], to_queue => %(to_queue)s, done_by => %(done_by)s,
        payload => %(payload)s::jsonb, headers => %(headers)s::jsonb)
"""

TRACE: Query = """
    SELECT skep._queen_trace(%(partition_id)s::uuid, %(transaction_id)s, %(group)s, %(event_type)s, %(data)s::jsonb,
        %(names)s::text[], %(worker)s)::text
"""
TRACES_OF: Query = "SELECT skep._queen_traces_of(%(partition_id)s::uuid, %(transaction_id)s)::text"
TRACES_NAMED: Query = "SELECT skep._queen_traces_named(%(name)s, %(visible)s::text[], %(limit)s, %(offset)s)::text"
TRACE_NAMES: Query = "SELECT skep._queen_trace_names(%(visible)s::text[], %(limit)s, %(offset)s)::text"

GROUPS: Query = "SELECT skep._queen_groups(%(visible)s::text[])::text"
LAGGING: Query = "SELECT skep._queen_lagging(%(seconds)s, %(visible)s::text[])::text"
GROUP: Query = "SELECT skep._queen_group(%(group)s, %(visible)s::text[])::text"
RESUBSCRIBE: Query = "SELECT skep._queen_resubscribe(%(group)s, %(start)s)"
SEEK_PARTITION: Query = """
    SELECT updated, moved_to FROM skep._queen_seek_partition(%(group)s, %(queue)s, %(partition)s, %(position)s)
"""
REFRESH: Query = "SELECT skep._queen_refresh()::text"

QUEUES: Query = """
    SELECT skep._queen_queues(%(namespace)s, %(task)s, %(visible)s::text[], %(limit)s, %(offset)s)::text
"""
QUEUE: Query = "SELECT skep._queen_queue(%(queue)s)::text"
PARTITIONS: Query = "SELECT skep._queen_partition_list(%(queue)s, %(visible)s::text[], %(limit)s, %(offset)s)::text"
DEPTH: Query = "SELECT skep._queen_depth(%(queue)s, %(group)s)::text"
NAMESPACES: Query = "SELECT skep._queen_namespaces(%(visible)s::text[])::text"
TASKS: Query = "SELECT skep._queen_tasks(%(visible)s::text[])::text"
OVERVIEW: Query = "SELECT skep._queen_overview(%(visible)s::text[])::text"
CLEAR: Query = "SELECT skep.clear_queue(%(queue)s, %(partition)s)"

STATUS: Query = """
    SELECT skep._queen_status(%(since)s, %(until)s, %(queue)s, %(namespace)s, %(task)s, %(visible)s::text[])::text
"""
QUEUE_STATUS: Query = "SELECT skep._queen_queue_status(%(queue)s)::text"
PUSHED: Query = """
    SELECT skep._queen_pushed(%(since)s, %(until)s, %(queue)s, %(namespace)s, %(task)s, %(interval)s,
        %(visible)s::text[])::text
"""
WORKER_METRICS: Query = "SELECT skep._queen_worker_metrics(%(since)s, %(until)s, %(visible)s::text[])::text"
QUEUE_LAG: Query = "SELECT skep._queen_queue_lag(%(since)s, %(until)s, %(queue)s, %(visible)s::text[])::text"
QUEUE_OPS: Query = "SELECT skep._queen_queue_ops(%(since)s, %(until)s, %(queue)s, %(visible)s::text[])::text"
RETENTION: Query = "SELECT skep._queen_retention(%(since)s, %(until)s, %(visible)s::text[])::text"
POSTGRES: Query = "SELECT skep._queen_postgres()::text"

DASH_OVERVIEW: Query = "SELECT skep._dashboard_overview(%(visible)s::text[])::text"
DASH_TREND: Query = "SELECT skep._dashboard_trend(%(since)s, %(points)s, %(visible)s::text[])::text"
DASH_QUEUE_TREND: Query = "SELECT skep._dashboard_queue_trend(%(queue)s, %(group)s, %(since)s, %(points)s)::text"
DASH_QUEUES: Query = """
    SELECT skep._dashboard_queues(
        %(search)s, %(sort)s, %(descending)s, %(limit)s, %(offset)s, %(visible)s::text[])::text
"""
DASH_GROUPS: Query = """
    SELECT skep._dashboard_groups(%(search)s, %(status)s, %(sort)s, %(descending)s, %(limit)s, %(offset)s,
        %(visible)s::text[])::text
"""
DASH_LANES: Query = "SELECT skep._dashboard_partitions(%(queue)s, %(group)s, %(sort)s, %(limit)s)::text"
DASH_HOLDERS: Query = "SELECT skep._dashboard_holders(%(queue)s)::text"
DASH_LEASES: Query = "SELECT skep._dashboard_leases(%(queue)s, %(group)s, %(limit)s)::text"
DASH_SEEK: Query = "SELECT skep._dashboard_seek(%(group)s, %(queue)s, %(position)s)::text"
DASH_PIPELINES: Query = "SELECT skep._dashboard_pipelines(%(visible)s::text[])::text"
DASH_DATABASE: Query = "SELECT skep._dashboard_database()::text"

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
    """Answer with the JSON of the database; None from there is 404."""
    return Reply(200, (await ask_text(call, query, missing, **arguments)).encode())


async def ask_text(call: Call, query: Query, missing: str = "", /, **arguments: object) -> str:
    answer: str | None = await call.state.admin.value(query, arguments)
    if answer is None:
        raise not_found(missing)
    return answer


async def visible(call: Call) -> list[str] | None:
    """Return the queues the caller may see; None is all there are."""
    if call.identity.allows("read", None):
        return None
    names: list[str] | None = await call.state.admin.value(QUEUE_NAMES, {})
    return [name for name in names or () if call.identity.visible(name)]


async def scope(call: Call) -> dict[str, Any]:
    """Return the queue that a list is narrowed to, which the caller must be allowed to read, or the visible ones."""
    queue = call.text("queue")
    if queue is None:
        return {"queue": None, "visible": await visible(call)}
    call.identity.require("read", queue)
    return {"queue": queue, "visible": None}


def page(call: Call, default: int) -> dict[str, Any]:
    """Read limit and offset. Beyond the deepest page there is an error rather than the same page for ever."""
    offset = call.integer("offset", 0)
    if offset > DEEPEST:
        raise bad_request(f"offset is at most {DEEPEST}; narrow the list by its filters instead")
    return {"limit": call.integer("limit", default, least=1, most=LONGEST_PAGE), "offset": offset}


def moment(call: Call, name: str) -> datetime | None:
    """Read a time; a `+` that was sent as it is has become a space."""
    given = call.text(name)
    if given is None:
        return None
    time = instant(given.strip().replace(" ", "+"), name)
    if not FIRST_YEAR <= time.year <= LAST_YEAR:  # beyond, neither Python nor PostgreSQL can count on
        raise bad_request(f"{name} is not a time from {FIRST_YEAR} to {LAST_YEAR}")
    return time


def time_range(call: Call) -> dict[str, Any]:
    until = moment(call, "to") or datetime.now(UTC)
    since = moment(call, "from") or until - timedelta(hours=1)
    if since > until:
        raise bad_request("from is later than to")
    return {"since": since, "until": until}


def open_rows(call: Call, answer: str, rows: str, field: str) -> bytes:
    """Decrypt the payloads in a list of an answer, if there are sealed ones."""
    raw = answer.encode()
    if SEALED not in raw:
        return raw
    document = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    opened = call.state.keyring.open_all(bytes(document[rows]).strip()[1:-1], field)
    return msgspec.json.encode(document | {rows: msgspec.Raw(b"[%s]" % opened)})


def open_one(call: Call, answer: str, field: str) -> bytes:
    raw = answer.encode()
    return call.state.keyring.open_all(raw, field) if SEALED in raw else raw
