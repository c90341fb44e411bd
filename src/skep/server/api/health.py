"""/health: is the server alive and can it reach its database; /ready: for load balancers."""

import os
import platform
from importlib.metadata import version
from typing import Literal

import msgspec

from skep.errors import SkepError
from skep.server.http.endpoint import Call, Endpoint, Reply, reply


class Health(msgspec.Struct):
    """The state of the server."""

    status: Literal["healthy", "unhealthy"]
    database: Literal["connected", "disconnected"]
    server: str
    version: str
    worker_id: str


class Readiness(msgspec.Struct):
    """Whether requests should be sent here."""

    ready: bool


async def health(call: Call) -> Reply:
    """Return 503 while the database cannot be reached. The server recovers by itself."""
    connected = await _connected(call)
    how = Health(
        status="healthy" if connected else "unhealthy",
        database="connected" if connected else "disconnected",
        server="skep",
        version=version("skep"),
        worker_id=f"{platform.node()}:{os.getpid()}",
    )
    return reply(how, 200 if connected else 503)


async def ready(call: Call) -> Reply:
    """Return 503 as soon as the server is stopping, so that no new requests are sent here."""
    fit = not call.state.stopping.is_set() and await _connected(call)
    return reply(Readiness(fit), 200 if fit else 503)


async def _connected(call: Call) -> bool:
    try:
        await call.state.mq.ping()
    except SkepError:
        return False
    return True


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/health",
        action=None,
        run=health,
        summary="Whether server and database work.",
        answers={200: Health, 503: Health},
    ),
    Endpoint(
        method="GET",
        path="/ready",
        action=None,
        run=ready,
        summary="Whether the server takes requests.",
        answers={200: Readiness, 503: Readiness},
    ),
)
