"""Failures: retries, then the dead-letter queue with the reason."""

from queen import Queen
from talk import IS_0_15, data, name, pop, tell


async def conversation(queen: Queen) -> dict:
    seen = {}
    for part in (one_poison, one_failure_in_a_batch, a_batch_that_recovers, a_batch_that_does_not, by_group):
        seen.update(await part(queen))
    return seen


async def one_poison(queen: Queen) -> dict:
    """A message that always fails is tried once and again; those after it are not harmed."""
    queue, tried = name("poison"), []
    await queen.queue(queue).config({"retry_limit": 2, "retry_delay": 0}).create()
    await queen.queue(queue).push([{"data": "good"}, {"data": "poison"}, {"data": "better"}])

    async def handle(message: dict) -> None:
        tried.append(message["data"])
        if message["data"] == "poison":
            raise ValueError("cannot read it")

    await queen.queue(queue).batch(1).limit(5).consume(handle)
    dead = await queen.queue(queue).dlq().get()
    return {"is 0.15": IS_0_15, "tried": tried, "dead": dead, "left": await pop(queen, queue)}


async def one_failure_in_a_batch(queen: Queen) -> dict:
    """After it 0.15 goes on with the batch, newer clients take for granted that the rest comes again."""
    queue, tried = name("once"), []
    await queen.queue(queue).config({"retry_limit": 2, "retry_delay": 0}).create()
    await queen.queue(queue).push([{"data": number} for number in range(5)])

    async def handle(message: dict) -> None:
        tried.append(message["data"])
        if message["data"] == 2 and tried.count(2) == 1:
            raise ValueError("once")

    await queen.queue(queue).batch(5).partitions(1).each().idle_millis(1000).timeout_millis(300).consume(handle)
    return {"each tried": tried, "each left": await pop(queen, queue), "each dead": await dead_letters(queen, queue)}


async def a_batch_that_recovers(queen: Queen) -> dict:
    queue, calls = name("recovers"), []
    await queen.queue(queue).config({"retry_delay": 0}).create()
    await queen.queue(queue).push([{"data": number} for number in range(100)])

    async def handle(messages: list) -> None:
        calls.append(len(messages))
        if len(calls) < 3:
            raise ValueError("not yet")

    await queen.queue(queue).batch(100).partitions(1).idle_millis(200).timeout_millis(100).consume(handle)
    return {"calls": calls, "recovered": await pop(queen, queue), "dead of it": await dead_letters(queen, queue)}


async def a_batch_that_does_not(queen: Queen) -> dict:
    """All of it fails every time: nothing is lost, all of it is dead in the end."""
    queue, calls = name("fails"), []
    await queen.queue(queue).config({"retry_limit": 1, "retry_delay": 0}).create()
    await queen.queue(queue).push([{"data": number} for number in range(3)])

    async def handle(messages: list) -> None:
        calls.append(data(messages))
        raise ValueError("never")

    await queen.queue(queue).batch(3).partitions(1).idle_millis(400).timeout_millis(200).consume(handle)
    return {"failing calls": calls, "all dead": sorted(await dead_letters(queen, queue))}


async def by_group(queen: Queen) -> dict:
    """What is dead for one group is alive for another; the list can be cut and filtered."""
    queue = name("groups")
    await queen.queue(queue).push([{"data": number} for number in range(5)])
    for message in await pop(queen, queue, group="a", subscription_mode="all"):
        await queen.ack(message, "dlq", {"group": "a", "error": f"reason {message['data']}"})
    page = await queen.queue(queue).dlq("a").limit(2).offset(1).get()
    return {
        "of a": sorted(data((await queen.queue(queue).dlq("a").get())["messages"])),
        "of b": data((await queen.queue(queue).dlq("b").get())["messages"]),
        "page": [[one["data"], one["errorMessage"]] for one in page["messages"]],
        "total": page.get("total"),
        "alive": data(await pop(queen, queue, group="b", subscription_mode="all")),
    }


async def dead_letters(queen: Queen, queue: str) -> list:
    return data((await queen.queue(queue).dlq().get())["messages"])


tell(conversation)
