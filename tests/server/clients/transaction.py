"""Transactions: ack and push together, or nothing."""

from queen import Queen
from talk import data, error_of, name, pop, tell

NOBODYS = "0190a8b2-0000-7000-8000-000000000001"


async def conversation(queen: Queen) -> dict:
    seen = {}
    for part in (committed, over_two_leases, rolled_back, in_a_group, with_a_lost_lease, only_pushes):
        seen.update(await part(queen))
    return seen


async def committed(queen: Queen) -> dict:
    source, target = name("source"), name("target")
    await queen.queue(source).push([{"data": 1}, {"data": 2}])
    messages = await pop(queen, source)
    bundle = queen.transaction().ack(messages)
    bundle.queue(target).partition("p").push([{"data": "x"}, {"data": "y"}])
    answer = await bundle.queue(name("other")).push({"data": "z"}).commit()
    return {
        "answer": answer,
        "source": await pop(queen, source),
        "target": data(await pop(queen, target, partition="p")),
        "other": data(await pop(queen, name("other"))),
    }


async def over_two_leases(queen: Queen) -> dict:
    queues = name("first"), name("second")
    for queue in queues:
        await queen.queue(queue).push({"data": queue})
    messages = [message for queue in queues for message in await pop(queen, queue)]
    answer = await queen.transaction().ack(messages).commit()
    return {"two leases": [len({message["leaseId"] for message in messages}), answer["success"]]}


async def rolled_back(queen: Queen) -> dict:
    """An ack that cannot be done undoes the push as well."""
    source, target = name("kept"), name("empty")
    await queen.queue(source).config({"lease_time": 300}).create()
    await queen.queue(source).push({"data": 1})
    (message,) = await pop(queen, source)
    bundle = queen.transaction().queue(target).push({"data": "x"}).ack(message)
    error = await error_of(bundle.ack({**message, "transactionId": "nobody"}).commit())
    return {
        "rollback": error,
        "not pushed": await pop(queen, target),
        "still mine": (await queen.ack(message))["success"],
        "nothing": await error_of(queen.transaction().commit()),
    }


async def in_a_group(queen: Queen) -> dict:
    queue = name("group")
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    for group in ("a", "b"):
        messages = await pop(queen, queue, group=group, batch=1)
        await queen.transaction().ack(messages, "completed", {"consumer_group": group}).commit()
    return {"a then": data(await pop(queen, queue, group="a")), "queue mode": data(await pop(queen, queue))}


async def with_a_lost_lease(queen: Queen) -> dict:
    queue, target = name("lost"), name("lost-target")
    await queen.queue(queue).push({"data": 1})
    (message,) = await pop(queen, queue)
    bundle = queen.transaction().ack({**message, "leaseId": NOBODYS}).queue(target).push({"data": "x"})
    return {"lost": await error_of(bundle.commit()), "not there": await pop(queen, target)}


async def only_pushes(queen: Queen) -> dict:
    """Many pushes over queues and partitions, seen at once by a pop of any partition."""
    bundle, queue = queen.transaction(), name("many")
    for partition in "abc":
        bundle = bundle.queue(queue).partition(partition).push([{"data": partition + number} for number in "12"])
    await bundle.commit()
    seen = await queen.queue(queue).batch(10).partitions(5).wait(enabled=False).pop()
    return {"many": sorted(data(seen))}


tell(conversation)
