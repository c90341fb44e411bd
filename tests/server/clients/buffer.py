"""Buffered pushes: they arrive when the buffer is full, when its time is over, when told, and at the end."""

from queen import Queen
from talk import URLS, data, name, pop, tell

FULL = {"message_count": 10, "time_millis": 60_000}


async def conversation(queen: Queen) -> dict:
    return {**await when_full(queen), **await when_late(queen), **await when_told(queen), **await at_the_end(queen)}


async def when_full(queen: Queen) -> dict:
    queue = name("full")
    answers = [await queen.queue(queue).buffer(FULL).push({"data": number}) for number in range(10)]
    return {"answer": answers[0], "full": data(await queen.queue(queue).batch(10).timeout_millis(10_000).pop())}


async def when_late(queen: Queen) -> dict:
    queue = name("late")
    await queen.queue(queue).buffer({"message_count": 1000, "time_millis": 200}).push([{"data": 1}, {"data": 2}])
    early = await pop(queen, queue)
    return {"early": early, "late": data(await queen.queue(queue).batch(10).timeout_millis(10_000).pop())}


async def when_told(queen: Queen) -> dict:
    queue = name("told")
    await queen.queue(queue).buffer(FULL).push([{"data": number} for number in range(3)])
    waiting = queen.get_buffer_stats()["totalBufferedMessages"]
    await queen.queue(queue).flush_buffer()
    await queen.queue(queue).partition("p").buffer(FULL).push({"data": "p"})
    await queen.flush_all_buffers()
    left = queen.get_buffer_stats()["totalBufferedMessages"]
    told = [data(await pop(queen, queue)), data(await pop(queen, queue, partition="p"))]
    return {"waiting": waiting, "left": left, "told": told}


async def at_the_end(queen: Queen) -> dict:
    queue = name("end")
    async with Queen(URLS[0]) as other:
        await other.queue(queue).buffer(FULL).push([{"data": number} for number in range(4)])
    return {"end": data(await pop(queen, queue))}


tell(conversation)
