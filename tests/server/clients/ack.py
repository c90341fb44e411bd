"""Ack, nack, and both in one batch."""

from queen import Queen
from talk import data, name, pop, pop_again, tell


async def conversation(queen: Queen) -> dict:
    return {**await single(queen), **await mixed(queen), **await words(queen), **await wrong(queen)}


async def single(queen: Queen) -> dict:
    queue = name("single")
    await queen.queue(queue).push([{"data": "a"}, {"data": "b"}])
    (first,) = await pop(queen, queue, batch=1)
    nacked = await queen.ack(first, status=False, context={"error": "try again"})
    (again,) = await pop_again(queen, queue, batch=1)
    acked = await queen.ack(again)
    (second,) = await pop(queen, queue, batch=1)
    return {"nacked": nacked, "redelivered": again["data"], "acked": acked, "then": second["data"]}


async def mixed(queen: Queen) -> dict:
    """A failure in the middle of a batch that is otherwise done is a dead letter, and nothing is lost."""
    queue = name("mixed")
    await queen.queue(queue).push([{"data": number} for number in range(4)])
    messages = await pop(queen, queue)
    messages[1] |= {"_status": False, "_error": "no"}
    answer = await queen.ack(messages)
    dead = await queen.queue(queue).dlq().get()
    letters = [[one["data"], one["errorMessage"]] for one in dead["messages"]]
    return {"mixed": answer, "mixed dead": letters, "mixed after": data(await pop(queen, queue))}


async def words(queen: Queen) -> dict:
    """`retry` costs nothing, `dlq` takes effect at once."""
    queue = name("words")
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push([{"data": "a"}, {"data": "b"}])
    for _ in range(3):
        (first,) = await pop(queen, queue, batch=1)
        assert (await queen.ack(first, "retry"))["success"], "a retry is taken"
    (first,) = await pop(queen, queue, batch=1)
    to_dlq = await queen.ack(first, "dlq", {"error": "poison"})
    dead = await queen.queue(queue).dlq().get()
    return {
        "still": first["data"],
        "to dlq": to_dlq["success"],
        "dead": [[one["data"], one["errorMessage"]] for one in dead["messages"]],
        "next": data(await pop(queen, queue)),
    }


async def wrong(queen: Queen) -> dict:
    queue = name("wrong")
    await queen.queue(queue).push([{"data": "a"}, {"data": "b"}])
    messages = await pop(queen, queue)
    unknown = await queen.ack({**messages[0], "transactionId": "nobody"})
    lease = await queen.ack({**messages[0], "leaseId": "0190a8b2-0000-7000-8000-000000000001"})
    word = await queen.ack(messages[0], "sideways")
    nothing = await queen.ack({"data": 1})
    fine = await queen.ack(messages)
    late = await queen.ack(messages[1], status=False)
    return {
        "unknown": unknown,
        "lease": lease,
        "word": word["success"],
        "no id": nothing["success"],
        "fine": fine["success"],
        "late": late["success"],
        "not again": await pop(queen, queue),
    }


tell(conversation)
