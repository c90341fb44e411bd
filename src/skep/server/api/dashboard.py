"""Routes for the dashboard: pages of lists, trends, and previews of actions."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from skep.message import DeadLetter
from skep.server.api import calls
from skep.server.api.reports import reports
from skep.server.http import lists
from skep.server.http.asgi import bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.http.grants import Action
from skep.server.http.lists import PAGE, ask

ACTIONS: tuple[Action, ...] = ("read", "push", "pop", "ack", "configure", "seek", "redrive", "admin")
LONGEST = 7 * 24 * 3600  # seconds: samples are not kept longer
REPORTS = 20  # that are listed
SECONDS = Param("seconds", "integer", "How far back; an hour if not given, a week at most.")
POINTS = Param("points", "integer", "At most this many points; 120 if not given.")
SEARCH = Param("search", help="Only those that have this in their names.")
SORT = (Param("sort", help="A column."), Param("descending", "boolean"))


class CallerRights(msgspec.Struct):
    """The caller, and the caller's rights on every queue, or on one."""

    subject: str | None
    may: list[str]


async def identity(call: Call) -> Reply:
    queue = call.text("queue")
    may = [action for action in ACTIONS if call.identity.allows(action, queue)]
    return reply(CallerRights(call.identity.subject, list(may)))


async def overview(call: Call) -> Reply:
    return await ask(call, calls.DASH_OVERVIEW, visible=await lists.visible(call))


async def trend(call: Call) -> Reply:
    return await ask(call, calls.DASH_TREND, **_time_span(call, 60), visible=await lists.visible(call))


async def queue_trend(call: Call) -> Reply:
    arguments = {"queue": call.params["queue"], "group": call.text("group")}
    return await ask(call, calls.DASH_QUEUE_TREND, **arguments, **_time_span(call, 120))


def _time_span(call: Call, points: int) -> dict[str, Any]:
    seconds = call.integer("seconds", 3600, least=60, most=LONGEST)
    return {"since": timedelta(seconds=seconds), "points": call.integer("points", points, least=2, most=500)}


async def queues(call: Call) -> Reply:
    return await ask(call, calls.DASH_QUEUES, **await _listed(call))


async def groups(call: Call) -> Reply:
    return await ask(call, calls.DASH_GROUPS, **await _listed(call), status=call.text("status"))


async def _listed(call: Call) -> dict[str, Any]:
    wish = {"search": call.text("search"), "sort": call.text("sort") or "name", "descending": call.flag("descending")}
    return wish | lists.page(call, 50) | {"visible": await lists.visible(call)}


async def partitions(call: Call) -> Reply:
    wish = {
        "group": call.text("group"),
        "sort": call.text("sort") or "lag",
        "limit": call.integer("limit", 20, most=200),
    }
    return await ask(call, calls.DASH_PARTITIONS, "Queue", queue=call.params["queue"], **wish)


async def holders(call: Call) -> Reply:
    return await ask(call, calls.DASH_HOLDERS, queue=call.params["queue"])


async def members(call: Call) -> Reply:
    """Return the leases of the group, and the clients that popped at this server."""
    queue, group = call.params["queue"], call.text("group") or ""
    workers, _ = call.state.measured()
    here = [each for worker in workers for each in worker.gauges.members]
    known = msgspec.json.encode([each for each in here if each.group == group and each.queue in (queue, "")])
    limit = call.integer("limit", 50, most=200)
    leases = await lists.ask_text(call, calls.DASH_LEASES, queue=queue, group=group, limit=limit)
    return Reply(200, b'{"members":%s,"out":%s}' % (known, leases.encode()))


async def preview_seek(call: Call) -> Reply:
    position = "end" if call.flag("toEnd") else lists.moment(call, "timestamp")
    if position is None:
        raise bad_request("give toEnd=true or a timestamp")
    named = {"group": call.params["group"], "queue": call.params["queue"]}
    return await ask(call, calls.DASH_SEEK, **named, position=str(position))


async def dead_letters(call: Call) -> Reply:
    """List dead letters of visible queues, newest first, with decrypted payloads."""
    before = call.integer("before", 0, most=2**62)
    found = await call.state.mq.dead_letters(
        call.text("queue"),
        call.text("group"),
        error=call.text("error"),
        failed_after=lists.moment(call, "failed_after"),
        failed_before=lists.moment(call, "failed_before"),
        before=before or None,
        limit=call.integer("limit", 25, least=1, most=200),
    )
    rows = msgspec.json.encode([each for each in found if call.identity.visible(each.queue)])
    return Reply(200, b"[%s]" % call.state.keyring.open_all(rows[1:-1], "payload") if lists.SEALED in rows else rows)


async def pipelines(call: Call) -> Reply:
    """Return the state of the archive, and the reports if the caller may read them."""
    archived = await lists.ask_text(call, calls.DASH_PIPELINES, visible=await lists.visible(call))
    folder = call.state.config.reports if call.identity.allows("read", None) else None
    found = await asyncio.to_thread(reports, folder)
    known = {"folder": None if folder is None else str(folder), "reports": found[:REPORTS]}
    return Reply(200, b'%s,"archive":%s}' % (msgspec.json.encode(known)[:-1], archived.encode()))


async def database(call: Call) -> Reply:
    return await ask(call, calls.DASH_DATABASE)


async def servers(call: Call) -> Reply:
    """Return the processes of this server. Other servers are seen by their connections to the database."""
    workers, _ = call.state.measured()
    return reply(
        [
            {
                "pid": worker.pid,
                "uptime": worker.gauges.uptime,
                "memory": worker.gauges.resident_bytes,
                "cpu": worker.gauges.user_seconds + worker.gauges.system_seconds,
                "pool": worker.gauges.pool,
                "parked": sum(worker.gauges.parked.values()),
            }
            for worker in workers
        ]
    )


_DASHBOARD = "/api/v1/dashboard"
_QUEUE = f"{_DASHBOARD}/queues/{{queue}}"

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/identity",
        action="read",
        on="each",
        run=identity,
        summary="Show the caller and the caller's rights.",
        query=(Param("queue", help="On this queue, rather than on every one."),),
        answers={200: CallerRights},
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/overview",
        action="read",
        on="each",
        run=overview,
        summary="Summarize rates, backlogs and the groups that lag most.",
        shared=True,
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/trend",
        action="read",
        on="each",
        run=trend,
        summary="All queues over time: [time, pushed/s, completed/s, backlog, age of the oldest, dead letters].",
        shared=True,
        query=(SECONDS, POINTS),
        answers={200: list[list[float | None]]},
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/queues",
        action="read",
        on="each",
        run=queues,
        summary="A page of queues, searched and sorted.",
        shared=True,
        query=(SEARCH, *SORT, *PAGE),
    ),
    Endpoint(
        method="GET",
        path=f"{_QUEUE}/trend",
        action="read",
        run=queue_trend,
        summary="A queue ('') and its groups over time: [group, time, rate, lag, age of the oldest, leased, dead].",
        shared=True,
        query=(Param("group", help="Only this one; '' is not a group."), SECONDS, POINTS),
        answers={200: list[list[str | float | None]]},
    ),
    Endpoint(
        method="GET",
        path=f"{_QUEUE}/partitions",
        action="read",
        run=partitions,
        summary="The partitions of a queue with the most of something, and how evenly all are used.",
        shared=True,
        query=(
            Param("group", help="As this group sees them."),
            Param("sort", help="lag, oldest, rate, kept, pushed or recent."),
            Param("limit", "integer", "At most this many; 20 if not given."),
        ),
    ),
    Endpoint(
        method="GET",
        path=f"{_QUEUE}/holders",
        action="read",
        run=holders,
        summary="The groups that retention waits for, with sums.",
        shared=True,
    ),
    Endpoint(
        method="GET",
        path=f"{_QUEUE}/members",
        action="read",
        run=members,
        summary="The leases of a group, and its clients at this server.",
        query=(Param("group"), Param("limit", "integer", "At most this many leases; 50 if not given.")),
        shared=True,
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/groups",
        action="read",
        on="each",
        run=groups,
        summary="A page of groups on queues, searched and sorted.",
        shared=True,
        query=(SEARCH, Param("status"), *SORT, *PAGE),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/consumer-groups/{group}/queues/{queue}/seek",
        action="read",
        run=preview_seek,
        summary="Preview a seek: how many messages are delivered again, and how many are skipped.",
        query=(Param("toEnd", "boolean"), Param("timestamp", help="A time.")),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/dead-letters",
        action="read",
        on="each",
        run=dead_letters,
        summary="List dead letters, newest first.",
        shared=True,
        query=(
            Param("queue"),
            Param("group"),
            Param("error", help="A part of the text."),
            Param("failed_after", help="A time."),
            Param("failed_before", help="A time."),
            Param("before", "integer", "Older than this one, by its id."),
            Param("limit", "integer", "At most this many; 25 if not given."),
        ),
        answers={200: list[DeadLetter]},
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/pipelines",
        action="read",
        on="each",
        run=pipelines,
        summary="The archive, its last runs, and the reports of analytics.",
        shared=True,
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/database",
        action="read",
        on="every",
        run=database,
        summary="The size of the database, its connections, and its oldest open transaction.",
        shared=True,
    ),
    Endpoint(
        method="GET",
        path=f"{_DASHBOARD}/servers",
        action="read",
        on="every",
        run=servers,
        summary="The processes of this server.",
        shared=True,
        answers={200: list[dict[str, Any]]},
    ),
)
