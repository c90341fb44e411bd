"""Maintenance: pushes are taken and kept, pops pause, and nothing is lost or doubled."""

from queen import Queen
from talk import data, name, pop, tell


async def conversation(queen: Queen) -> dict:
    queue = name("queue")
    await queen.queue(queue).push({"data": 1})
    seen: dict = {"on": (await queen.admin.set_maintenance_mode(enabled=True))["maintenanceMode"]}
    seen["pushed"] = [one["status"] for one in await queen.queue(queue).push([{"data": 2}, {"data": 3}])]
    seen["off"] = (await queen.admin.set_maintenance_mode(enabled=False))["maintenanceMode"]
    seen["pop on"] = (await queen.admin.set_pop_maintenance_mode(enabled=True))["popMaintenanceMode"]
    seen["paused"] = await pop(queen, queue)
    seen["pop off"] = (await queen.admin.set_pop_maintenance_mode(enabled=False))["popMaintenanceMode"]
    seen["all"] = data(await pop(queen, queue))
    return seen


tell(conversation)
