"""Pushes the ticks of schedules that are due."""

from skep.client import AsyncSkep


async def tick(mq: AsyncSkep) -> str | None:
    ran = await mq.run_schedules()
    messages = ran.messages
    while ran.messages:
        ran = await mq.run_schedules()
        messages += ran.messages
    refused = f"{ran.refused:,} schedules are refused by their queues" if ran.refused else ""
    pushed = f"pushed {messages:,} scheduled messages" if messages else ""
    return "; ".join(filter(None, (pushed, refused))) or None
