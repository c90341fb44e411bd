"""A consumer that lives through a restart of the server; its standard input says when there is one."""

import asyncio
import sys

from queen import Queen
from talk import name, tell


async def conversation(queen: Queen) -> dict:
    queue, handled, arrived = name("queue"), [], asyncio.Event()

    async def handle(message: dict) -> None:
        handled.append(message["data"])

    async def acked(message: dict, _result: None) -> None:
        await queen.ack(message)
        arrived.set()

    await asyncio.to_thread(sys.stdin.readline)
    consumer = asyncio.ensure_future(queen.queue(queue).batch(1).limit(2).consume(handle).on_success(acked))
    await queen.queue(queue).push({"data": "before"})
    await arrived.wait()
    print("handled one", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await queen.queue(queue).push({"data": "after"})
    await consumer
    return {"handled": handled}


tell(conversation)
