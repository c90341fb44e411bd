"""The administrator's calls, on queues in which something has happened."""

from queen import Queen
from talk import IS_0_15, data, error_of, name, pop, tell


async def conversation(queen: Queen) -> dict:
    queue, group = name("queue"), name("group")
    await queen.queue(queue).namespace(name("space")).task("mail").create()
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    await queen.queue(queue).partition("p").push({"data": "p"})
    (first,) = await pop(queen, queue, batch=1, group=group, partition="p", subscription_mode="all")
    await queen.ack(first, context={"group": group})
    seen = {"resources": await resources(queen, queue), "status": await status(queen, queue)}
    seen["groups"] = await groups(queen, group, queue)
    seen["messages"] = await messages(queen, name("browsed"))
    seen["system"] = await system(queen)
    if IS_0_15:
        seen["only 0.15"] = await only_0_15(queen, queue)
    else:
        seen["depth"] = await queen.admin.get_queue_depth(queue, group)
    return seen


async def resources(queen: Queen, queue: str) -> dict:
    listed = (await queen.admin.list_queues())["queues"]
    spaces = (await queen.admin.get_namespaces())["namespaces"]
    return {
        "overview": await queen.admin.get_overview(),
        "queue": await queen.admin.get_queue(queue),
        "listed": [one for one in listed if one["name"] == queue],
        "namespaces": [one for one in spaces if one["namespace"] == name("space")],
        "tasks": (await queen.admin.get_tasks())["tasks"],
        "partitions": await queen.admin.get_partitions(queue=queue),
    }


async def status(queen: Queen, queue: str) -> dict:
    return {
        "status": await queen.admin.get_status(),
        "queues": (await queen.admin.get_queue_stats(limit=100))["queues"],
        "queue": await queen.admin.get_queue_detail(queue),
        "analytics": await queen.admin.get_analytics(interval="hour"),
        "system metrics": await queen.admin.get_system_metrics(),
        "worker metrics": await queen.admin.get_worker_metrics(),
    }


async def groups(queen: Queen, group: str, queue: str) -> dict:
    refreshed = await error_of(queen.admin.refresh_consumer_stats())
    listed = await queen.admin.list_consumer_groups()
    return {
        "refreshed": refreshed,
        "listed": [one for one in listed if one["name"] == group],
        "group": await queen.admin.get_consumer_group(group),
        "nobody": await queen.admin.get_consumer_group("nobody"),
        "lagging": await queen.admin.get_lagging_consumers(min_lag_seconds=0),
    }


async def messages(queen: Queen, queue: str) -> dict:
    """Browse, look at one, delete it, bring a dead one back."""
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    listed = (await queen.admin.list_messages(queue=queue, limit=100))["messages"]
    places = [(one["partitionId"], one["transactionId"]) for one in reversed(listed)]
    shown = await queen.admin.get_message(*places[0])
    deleted = await queen.admin.delete_message(*places[1])
    (first,) = await pop(queen, queue, batch=1)
    await queen.ack(first, "dlq", {"error": "dead"})
    dead = await queen.admin.list_messages(queue=queue, status="dead_letter")
    retried = await queen.admin.retry_message(*places[0])
    return {
        "listed": listed,
        "shown": shown,
        "deleted": deleted,
        "dead": [one["transactionId"] for one in dead["messages"]] == [places[0][1]],
        "retried": retried,
        "dead after": (await queen.queue(queue).dlq().get())["messages"],
        "left": sorted(data(await pop(queen, queue)) + data(await pop(queen, queue))),  # the dead one has its own lane
    }


async def system(queen: Queen) -> dict:
    return {"health": await queen.admin.health(), "metrics": await queen.admin.metrics()}


async def only_0_15(queen: Queen, queue: str) -> dict:
    """What newer clients have no call for."""
    seen = {
        "maintenance": await queen.admin.get_maintenance_mode(),
        "pop maintenance": await queen.admin.get_pop_maintenance_mode(),
        "postgres": sorted(await queen.admin.get_postgres_stats()),
    }
    doomed = name("doomed")
    await queen.queue(doomed).push([{"data": 1}, {"data": 2}])
    (listed, *_) = (await queen.admin.list_messages(queue=doomed))["messages"]
    seen["to dlq"] = await error_of(queen.admin.move_message_to_dlq(listed["partitionId"], listed["transactionId"]))
    seen["dead"] = len((await queen.queue(doomed).dlq().get())["messages"])
    seen["cleared"] = await error_of(queen.admin.clear_queue(queue))
    seen["after clear"] = await pop(queen, queue, group="late", subscription_mode="all")
    return seen


tell(conversation)
