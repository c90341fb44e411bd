"""Maintenance mode of all servers: hold pushes, pause pops."""

from typing import Any

import msgspec

from skep.message import MaintenanceStatus
from skep.server.http.asgi import decode
from skep.server.http.endpoint import Call, Endpoint, Reply, reply


class Switch(msgspec.Struct):
    """Begin or end a maintenance mode."""

    enabled: bool


_switch = msgspec.json.Decoder(Switch)


class PushMaintenance(msgspec.Struct, rename="camel"):
    """Whether pushes are held, and how many messages wait."""

    maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    message: str


class PopMaintenance(msgspec.Struct, rename="camel"):
    """Whether pops pause."""

    pop_maintenance_mode: bool
    message: str


class BothMaintenances(msgspec.Struct, rename="camel"):
    """All there is to know about maintenance."""

    maintenance_mode: bool
    pop_maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    buffer_stats: dict[str, Any]


async def show(call: Call) -> Reply:
    status = await call.state.maintenance.refresh()
    files = {"count": status.refused, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0}
    stats = {"pendingCount": status.held, "failedCount": status.refused, "dbHealthy": True, "failedFiles": files}
    return reply(BothMaintenances(status.push, status.pop, status.held, status.refused == 0, stats))


async def switch(call: Call) -> Reply:
    status = await call.state.maintenance.switch(push=await _wish(call))
    text = "pushes are held until maintenance ends" if status.push else "pushes are stored; nothing is held"
    if not status.push and status.held:
        text = f"{status.held} held messages were refused by the database; upkeep tries them again"
    return reply(PushMaintenance(status.push, status.held, status.refused == 0, text))


async def show_pop(call: Call) -> Reply:
    return _pop(await call.state.maintenance.refresh())


async def switch_pop(call: Call) -> Reply:
    return _pop(await call.state.maintenance.switch(pop=await _wish(call)))


async def _wish(call: Call) -> bool:
    return decode(_switch, await call.body() or b"{}", lambda _: "enabled (boolean) is required").enabled


def _pop(status: MaintenanceStatus) -> Reply:
    return reply(PopMaintenance(status.pop, "pops pause" if status.pop else "pops deliver"))


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/system/maintenance",
        action="admin",
        run=show,
        summary="Show whether there is maintenance, and what is held.",
        answers={200: BothMaintenances},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/system/maintenance",
        action="admin",
        run=switch,
        summary="Begin or end push maintenance on all servers. At its end everything is stored that was held.",
        body=Switch,
        answers={200: PushMaintenance},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/system/maintenance/pop",
        action="admin",
        run=show_pop,
        summary="Show whether pops pause.",
        answers={200: PopMaintenance},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/system/maintenance/pop",
        action="admin",
        run=switch_pop,
        summary="Let pops pause on all servers, or go on. Paused pops answer 204, long polls when their time is up.",
        body=Switch,
        answers={200: PopMaintenance},
    ),
)
