"""A consumer that lives through a restart of the server; its standard input says when there is one."""

import asyncio
import os
import sys

from queen import Queen
from talk import URLS, name, tell


async def conversation(_: Queen) -> dict:
    async with Queen(url=URLS[0], retry_attempts=2) as less_patient:
        return await consume(less_patient)


async def consume(queen: Queen) -> dict:
    queue, handled, arrived = name("queue"), [], asyncio.Event()

    async def handle(message: dict) -> None:
        handled.append(message["data"])

    async def acked(message: dict, _result: None) -> None:
        await queen.ack(message)
        arrived.set()

    await asyncio.to_thread(sys.stdin.readline)
    consumer = asyncio.ensure_future(
        queen.queue(queue).batch(1).timeout_millis(1000).limit(2).consume(handle).on_success(acked)
    )
    consumer.add_done_callback(end_if_it_failed)
    await queen.queue(queue).push({"data": "before"})
    await arrived.wait()
    print("handled one", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await queen.queue(queue).push({"data": "after"})
    await consumer
    return {"handled": handled}


def end_if_it_failed(consumer: asyncio.Future) -> None:
    if error := consumer.exception():
        print(f"the consumer died of {error!r}", file=sys.stderr, flush=True)
        os._exit(1)  # the program waits for its standard input in a thread


tell(conversation)
