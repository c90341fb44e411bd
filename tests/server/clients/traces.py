"""Traces: notes that a consumer leaves at a message, and that can be found again."""

from queen import Queen
from talk import name, tell


async def conversation(queen: Queen) -> dict:
    queue, order, seen = name("queue"), name("order 7/a"), {}
    await queen.queue(queue).push({"data": {"id": 7}})
    place = []

    async def handle(message: dict) -> None:
        place.extend([message["partitionId"], message["transactionId"]])
        seen["plain"] = await message["trace"]({"data": {"text": "started"}})
        names = [order, name("payments")]
        seen["named"] = await message["trace"]({"data": {"step": 2}, "traceName": names, "eventType": "step"})
        seen["one name"] = await message["trace"]({"data": "text", "traceName": order})
        seen["without data"] = await message["trace"]({"text": "no data"})

    await queen.queue(queue).group("tracers").subscription_mode("all").batch(1).limit(1).consume(handle)
    seen["of message"] = (await queen.admin.get_traces_for_message(*place))["traces"]
    seen["by name"] = await queen.admin.get_traces_by_name(order)
    seen["page"] = len((await queen.admin.get_traces_by_name(order, limit=1, offset=1))["traces"])
    names = (await queen.admin.get_trace_names(limit=100))["trace_names"]
    seen["names"] = {one["trace_name"]: one["trace_count"] for one in names if one["trace_name"].startswith(name(""))}
    seen["by no name"] = (await queen.admin.get_traces_by_name("nobody"))["traces"]
    return seen


tell(conversation)
