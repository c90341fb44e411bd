"""Queues, partitions, namespaces and tasks with their sizes."""

from skep.message import QUEUE_MODE
from skep.server.http import lists
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply
from skep.server.http.lists import PAGE, ask
from skep.server.queen import calls

EVERY = {"namespace": None, "task": None, "limit": None, "offset": 0}


async def queues(call: Call) -> Reply:
    return await ask(call, calls.QUEUES, visible=await lists.visible(call), **EVERY)


async def queue(call: Call) -> Reply:
    return await ask(call, calls.QUEUE, "Queue", queue=call.params["queue"])


async def depth(call: Call) -> Reply:
    group = call.text("group") or QUEUE_MODE
    return await ask(call, calls.DEPTH, "Queue", queue=call.params["queue"], group=group)


async def partitions(call: Call) -> Reply:
    return await ask(call, calls.PARTITIONS, **await lists.scope(call), **lists.page(call, lists.LONGEST_PAGE))


async def namespaces(call: Call) -> Reply:
    return await ask(call, calls.NAMESPACES, visible=await lists.visible(call))


async def tasks(call: Call) -> Reply:
    return await ask(call, calls.TASKS, visible=await lists.visible(call))


async def overview(call: Call) -> Reply:
    return await ask(call, calls.OVERVIEW, visible=await lists.visible(call))


async def clear(call: Call) -> Reply:
    name, partition = call.params["queue"], call.text("partition")
    cleared = await call.state.admin.value(calls.CLEAR, {"queue": name, "partition": partition})
    return reply({"success": True, "queue": name, "partition": partition, "cleared": cleared})


_RESOURCES = "/api/v1/resources"

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=f"{_RESOURCES}/queues",
        action="read",
        on="each",
        run=queues,
        summary="List queues, newest first.",
    ),
    Endpoint(
        method="GET",
        path=f"{_RESOURCES}/queues/{{queue}}",
        action="read",
        run=queue,
        summary="Show a queue and its partitions.",
    ),
    Endpoint(
        method="GET",
        path=f"{_RESOURCES}/queues/{{queue}}/depth",
        action="read",
        run=depth,
        summary="Tell what a group has still to do in a queue.",
        query=(Param("group", help="The queue's own consumers if not given."),),
    ),
    Endpoint(
        method="GET",
        path=f"{_RESOURCES}/partitions",
        action="read",
        on="each",
        run=partitions,
        summary="List partitions by name, of one queue or of all.",
        query=(Param("queue"), *PAGE),
    ),
    Endpoint(
        method="GET",
        path=f"{_RESOURCES}/namespaces",
        action="read",
        on="each",
        run=namespaces,
        summary="List namespaces.",
    ),
    Endpoint(method="GET", path=f"{_RESOURCES}/tasks", action="read", on="each", run=tasks, summary="List tasks."),
    Endpoint(
        method="GET",
        path=f"{_RESOURCES}/overview",
        action="read",
        on="each",
        run=overview,
        summary="Sum up all queues.",
    ),
    Endpoint(
        method="DELETE",
        path="/api/v1/queues/{queue}/clear",
        action="admin",
        run=clear,
        summary="Delete every message of a queue, or of one partition.",
        query=(Param("partition"),),
    ),
)
