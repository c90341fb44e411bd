"""Metrics of the server and of its queues: a JSON summary, and text for Prometheus."""

import msgspec

from skep.errors import SkepError
from skep.server.api import calls
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.http.exposition import CONTENT_TYPE, Numbers, Place, expose


class Metrics(msgspec.Struct):
    """A summary of all processes of this server."""

    uptime: float
    requests: dict[str, float]
    messages: dict[str, int]
    database: dict[str, int]
    memory: dict[str, int]
    cpu: dict[str, float]


async def summary(call: Call) -> Reply:
    workers, counts = call.state.measured()
    gauges = [worker.gauges for worker in workers]
    uptime = max((gauge.uptime for gauge in gauges), default=0.0)
    pool = {name: sum(gauge.pool[name] for gauge in gauges) for name in ("size", "idle", "waiting")}
    return reply(
        Metrics(
            uptime=uptime,
            requests={"total": counts.requests, "rate": counts.requests / max(uptime, 1.0)},
            messages={stage: counts.messages.get(stage, 0) for stage in ("pushed", "popped", "acked")},
            database={
                "poolSize": pool["size"],
                "idleConnections": pool["idle"],
                "waitingRequests": pool["waiting"],
            },
            memory={
                "rss": sum(gauge.resident_bytes for gauge in gauges),
                "virtual": sum(gauge.virtual_bytes for gauge in gauges),
            },
            cpu={
                "user": sum(gauge.user_seconds for gauge in gauges),
                "system": sum(gauge.system_seconds for gauge in gauges),
            },
        )
    )


async def prometheus(call: Call) -> Reply:
    workers, counts = call.state.measured()
    text = expose(Numbers(workers, counts, await _places(call), call.state.maintenance.status))
    return Reply(200, text, ((b"content-type", CONTENT_TYPE.encode()),))


async def _places(call: Call) -> list[Place] | None:
    """Return the metrics of the database; none if it cannot be reached."""
    try:
        return await call.state.database.call(calls.METRICS, {}, Place)
    except SkepError:
        return None


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/metrics",
        action=None,
        run=summary,
        summary="A summary of the server's metrics.",
        answers={200: Metrics},
    ),
    Endpoint(
        method="GET",
        path="/metrics/prometheus",
        action=None,
        run=prometheus,
        summary="All metrics, for Prometheus.",
        answers={200: str},
        media="text/plain",
    ),
)
