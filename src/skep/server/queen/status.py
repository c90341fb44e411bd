"""How queues are, now and over the last hour or another time."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from skep.errors import SkepError
from skep.server.http import lists
from skep.server.http.asgi import bad_request
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.http.lists import PAGE, RANGE, ask
from skep.server.queen import calls, messages

INTERVALS = ("minute", "hour", "day")
SHORT = ("id", "transactionId", "partitionId", "queuePath", "queue", "partition", "status", "createdAt")
EVER = datetime.fromtimestamp(0, UTC)


async def status(call: Call) -> Reply:
    return await ask(call, calls.STATUS, **_filters(call), **await lists.scope(call), **lists.time_range(call))


async def queues(call: Call) -> Reply:
    page = lists.page(call, 100)
    filters = _filters(call) | page | {"visible": await lists.visible(call)}
    found: dict[str, Any] = msgspec.json.decode(await lists.ask_text(call, calls.QUEUES, **filters))
    return reply(found | {"pagination": page})


async def queue(call: Call) -> Reply:
    return await ask(call, calls.QUEUE_STATUS, "Queue", queue=call.params["queue"])


async def queue_messages(call: Call) -> Reply:
    """List messages of any age."""
    filters = {"partition": None, "namespace": None, "task": None, "status": None, "visible": None}
    found = await lists.ask_text(
        call,
        calls.MESSAGES,
        queue=call.params["queue"],
        since=EVER,
        until=messages.end_of_minute(datetime.now(UTC)),
        **filters,
        **lists.page(call, 50),
    )
    rows: list[dict[str, Any]] = msgspec.json.decode(found)["messages"]
    return reply([{name: row[name] for name in SHORT} for row in rows])


async def analytics(call: Call) -> Reply:
    interval = call.text("interval") or "hour"
    if interval not in INTERVALS:
        raise bad_request(f"interval is one of {', '.join(INTERVALS)}")
    filters = _filters(call) | {"interval": interval}
    return await ask(call, calls.PUSHED, **filters, **await lists.scope(call), **lists.time_range(call))


async def buffers(call: Call) -> Reply:
    """Say what Queen says of its file buffers: there are none, what is accepted is in the database."""
    try:
        await call.state.mq.ping()
    except SkepError:
        healthy = False
    else:
        healthy = True
    note = "nothing is buffered: what is accepted is in the database"
    return reply({"pending": 0, "failed": 0, "dbHealthy": healthy, "worker": 0, "note": note})


def _filters(call: Call) -> dict[str, Any]:
    return {"namespace": call.text("namespace"), "task": call.text("task")}


_FILTERS = (Param("queue"), Param("namespace"), Param("task"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/status",
        action="read",
        on="each",
        run=status,
        summary="Show throughput over time, and how queues, leases and dead letters are now.",
        query=(*RANGE, *_FILTERS),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/status/queues",
        action="read",
        on="each",
        run=queues,
        summary="List queues, newest first.",
        query=(Param("namespace"), Param("task"), *PAGE),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/status/queues/{queue}",
        action="read",
        run=queue,
        summary="Show a queue, its options and its partitions.",
    ),
    Endpoint(
        method="GET",
        path="/api/v1/status/queues/{queue}/messages",
        action="read",
        run=queue_messages,
        summary="List messages of a queue, newest first.",
        query=PAGE,
        answers={200: list[dict[str, Any]]},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/status/analytics",
        action="read",
        on="each",
        run=analytics,
        summary="Count what was pushed over time.",
        query=(*RANGE, *_FILTERS, Param("interval", help="minute, hour or day.")),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/status/buffers",
        action="read",
        on="each",
        run=buffers,
        summary="Tell of buffers, of which there are none.",
    ),
)
