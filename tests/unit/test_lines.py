"""Lines of pops: who was answered is not served again, however many stand in line."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from skep.server.pop import MERGED, Lines, Popped, Wanted

WANTED = Wanted("orders", "__QUEUE_MODE__", auto_ack=True)


class Database:
    """Serves so many requests of each call, and notes how many it was given; `open` lets a call take its time."""

    def __init__(self, *serves: int) -> None:
        self.serves = list(serves)
        self.calls: list[int] = []
        self.open = asyncio.Event()
        self.open.set()

    async def call(self, _query: str, arguments: Mapping[str, Any], _row: object, **_: object) -> list[Popped]:
        asked = len(arguments["batches"])
        self.calls.append(asked)
        await self.open.wait()
        served = range(1, 1 + min(asked, self.serves.pop(0) if self.serves else 0))
        return [Popped(n, uuid4(), "orders", "p", uuid4(), 1, b"{}", sealed=False, size=1) for n in served]

    async def value(self, _query: str, arguments: Mapping[str, Any]) -> list[bool]:
        return [False for _ in arguments.get("queues", ())]


def lines(database: Database) -> Lines:
    return Lines(database, max_pending=1000, merged=lambda _: None)  # pyright: ignore[reportArgumentType]


async def test_who_was_answered_empty_is_not_offered_to_the_next_call():
    """With auto ack, what such a request were given would be lost: nobody reads it."""
    database = Database(0, MERGED)
    database.open.clear()
    line = lines(database)
    requests = [asyncio.create_task(line.pop(WANTED, 1, 1, 0)) for _ in range(MERGED + 20)]
    await asyncio.sleep(0.01)
    line.wake(["orders"])  # something came while the first call was under way
    database.open.set()
    answers = await asyncio.gather(*requests)
    delivered = sum(answer is not None for answer in answers)
    asked_again = sum(database.calls[1:])
    assert asked_again == delivered
    await line.close()


async def test_those_who_wait_keep_their_place():
    database = Database(0, 1, 1)
    line = lines(database)
    first, second = (asyncio.create_task(line.pop(WANTED, 1, 1, 5)) for _ in range(2))
    await asyncio.sleep(0.01)
    line.wake(["orders"])
    await asyncio.wait([first], timeout=2)
    assert (first.done(), second.done()) == (True, False)
    line.wake(["orders"])
    assert await second is not None
    await line.close()
