"""Push one, many, any JSON, and the same thing twice."""

from queen import Queen
from talk import data, error_of, name, pop, tell

TRACE = "7c9e6679-7425-40de-944b-e07fc1f90ae7"  # of version 4: the clients send no other
PAYLOADS = [
    {"id": 1},
    None,
    0,
    False,
    "",
    "täxt 🐝",
    [1, [2, {"x": None}]],
    1.5,
    {"nested": {"deep": ["a" * 70_000]}},
    {},
]


async def conversation(queen: Queen) -> dict:
    queue = name("queue")
    seen = {"one": await queen.queue(queue).push({"plain": "item"})}
    seen["popped"] = await pop(queen, queue)
    await queen.ack(seen["popped"])
    await queen.queue(queue).push([{"data": payload} for payload in PAYLOADS])
    seen["payloads"] = data(await pop(queen, queue, batch=100)) == PAYLOADS
    seen.update(await duplicates(queen))
    seen.update(await refused(queen))
    return seen


async def duplicates(queen: Queen) -> dict:
    queue = name("duplicates")
    item = {"data": "first", "transactionId": "order-7", "traceId": TRACE}
    first = await queen.queue(queue).push(item)
    again = await queen.queue(queue).push([{"data": 0}, {**item, "data": "second"}, {"data": 1}])
    at_once = await queen.queue(queue).push([{**item, "transactionId": "order-8"}] * 2)
    elsewhere = await queen.queue(queue).partition("other").push(item)
    called = []

    async def on_duplicate(items: list, error: Exception) -> None:
        called.append(["duplicate", len(items), str(error)])

    async def on_success(items: list) -> None:
        called.append(["success", len(items)])

    both = [item, {"data": "new", "transactionId": "order-9"}]
    await queen.queue(queue).push(both).on_duplicate(on_duplicate).on_success(on_success)
    stored = await pop(queen, queue, partition="other")
    return {
        "first": first,
        "again": again,
        "at once": at_once,
        "elsewhere": elsewhere,
        "called": called,
        "trace": stored[0]["traceId"],
        "transaction": stored[0]["transactionId"],
    }


async def refused(queen: Queen) -> dict:
    """What cannot be stored is refused at once, and harms nobody else."""
    queue = name("refused")
    return {
        "nul": await error_of(queen.queue(queue).push({"data": "a\x00b"})),
        "long": await error_of(queen.queue(queue).push({"data": 1, "transactionId": "x" * 300})),
        "fine": [one["status"] for one in await queen.queue(queue).push({"data": "fine"})],
        "stored": data(await pop(queen, queue)),
    }


tell(conversation)
