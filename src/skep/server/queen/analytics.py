"""The series of Queen's dashboard. Values that Skep does not count are empty or 0, in the right shape."""

import os
import platform
from datetime import UTC, datetime, timedelta
from typing import Any

from skep.server.http import lists
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.http.lists import RANGE, ask, time_range
from skep.server.queen import calls

# The same widths as in SQL (`_bucket_minutes`), for the series that have no query.
WIDTHS = ((timedelta(hours=1), 1), (timedelta(hours=6), 5), (timedelta(hours=24), 15), (timedelta(days=7), 60))
WIDEST = 360


async def system_metrics(call: Call) -> Reply:
    replicas: list[Any] = []
    return reply(_empty(call) | {"replicas": replicas, "replicaCount": 0, "pointCount": 0})


async def worker_metrics(call: Call) -> Reply:
    return await ask(call, calls.WORKER_METRICS, visible=await lists.visible(call), **time_range(call))


async def queue_lag(call: Call) -> Reply:
    return await ask(call, calls.QUEUE_LAG, **await lists.scope(call), **time_range(call))


async def queue_ops(call: Call) -> Reply:
    return await ask(call, calls.QUEUE_OPS, **await lists.scope(call), **time_range(call))


async def retention(call: Call) -> Reply:
    return await ask(call, calls.RETENTION, visible=await lists.visible(call), **time_range(call))


async def parked(call: Call) -> Reply:
    """Tell who waits at this process now: how many did in the past is not kept."""
    replica = {"hostname": platform.node(), "workerId": os.getpid()}
    bucket = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:00Z}"
    waiting = {name: count for name, count in call.state.waiting_by_queue().items() if count}
    series = [
        {"bucket": bucket, "queueName": name, **replica, "parkedCount": count}
        for name, count in sorted(waiting.items())
        if call.identity.visible(name)
    ]
    return reply(_empty(call) | {"series": series, "replicas": [replica]})


async def postgres(call: Call) -> Reply:
    return await ask(call, calls.POSTGRES)


def _empty(call: Call) -> dict[str, Any]:
    given = time_range(call)
    length = given["until"] - given["since"]
    minutes = next((width for longest, width in WIDTHS if length <= longest), WIDEST)
    shown = {name: _time(given[key]) for name, key in (("from", "since"), ("to", "until"))}
    return {"timeRange": shown, "bucketMinutes": minutes}


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


_ANALYTICS = "/api/v1/analytics"
_WORKER = (Param("hostname"), Param("workerId"))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/system-metrics",
        action="read",
        on="each",
        run=system_metrics,
        summary="Have the shape of Queen's system metrics; Prometheus has the numbers.",
        query=(*RANGE, *_WORKER),
    ),
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/worker-metrics",
        action="read",
        on="each",
        run=worker_metrics,
        summary="Show throughput and lag over time.",
        query=(*RANGE, *_WORKER),
    ),
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/queue-lag",
        action="read",
        on="each",
        run=queue_lag,
        summary="Show the lag of queues over time.",
        query=(*RANGE, Param("queue")),
        answers={200: list[dict[str, Any]]},
    ),
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/queue-ops",
        action="read",
        on="each",
        run=queue_ops,
        summary="Show what happened in queues over time.",
        query=(*RANGE, Param("queue")),
    ),
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/queue-parked-replicas",
        action="read",
        on="each",
        run=parked,
        summary="Tell who waits for messages at this process.",
        query=RANGE,
    ),
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/retention",
        action="read",
        on="each",
        run=retention,
        summary="Show what retention deleted over time.",
        query=RANGE,
    ),
    Endpoint(
        method="GET",
        path=f"{_ANALYTICS}/postgres-stats",
        action="read",
        on="every",
        run=postgres,
        summary="Show what PostgreSQL says of itself and of Skep's tables.",
        shared=True,
    ),
)
