"""Commit at delivery: no lease, nothing to ack, and never again."""

from queen import Queen
from talk import IS_0_15, data, name, pop, tell


async def conversation(queen: Queen) -> dict:
    queue = name("queue")
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    first = await take(queen, queue, 3)
    return {
        "first": data(first),
        "leases": [message["leaseId"] for message in first],
        "rest": data(await take(queen, queue, 3)),
        "after": await pop(queen, queue),
    }


async def take(queen: Queen, queue: str, batch: int) -> list:
    if IS_0_15:  # it has the option, but never sends it: its own connection has to
        answer = await queen._http_client.get(f"/api/v1/pop/queue/{queue}?batch={batch}&wait=false&autoAck=true")
        return answer["messages"]
    return await queen.queue(queue).batch(batch).wait(enabled=False).commit_on_delivery().pop()


tell(conversation)
