"""Waiting pops: a request that got its response is not served again, however many are waiting."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from skep.server.pop import MERGED, Lines, Popped, Wanted

WANTED = Wanted("orders", "__QUEUE_MODE__", auto_ack=True)


class Database:
    """Serves this many requests of each call, and records how many it was given; `open` delays a call."""

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


def make_waiters(database: Database) -> Lines:
    return Lines(database, max_pending=1000, merged=lambda _: None)  # pyright: ignore[reportArgumentType]


async def test_a_request_with_an_empty_response_is_not_offered_to_the_next_call():
    """With auto ack, the messages of such a request would be lost, because its client is gone."""
    database = Database(0, MERGED)
    database.open.clear()
    waiters = make_waiters(database)
    requests = [asyncio.create_task(waiters.pop(WANTED, 1, 1, 0)) for _ in range(MERGED + 20)]
    await asyncio.sleep(0.01)
    waiters.wake(["orders"])  # a message arrived during the first call
    database.open.set()
    results = await asyncio.gather(*requests)
    delivered = sum(result is not None for result in results)
    asked_again = sum(database.calls[1:])
    assert asked_again == delivered
    await waiters.close()


async def test_waiting_requests_keep_their_order():
    database = Database(0, 1, 1)
    waiters = make_waiters(database)
    first, second = (asyncio.create_task(waiters.pop(WANTED, 1, 1, 5)) for _ in range(2))
    await asyncio.sleep(0.01)
    waiters.wake(["orders"])
    await asyncio.wait([first], timeout=2)
    assert (first.done(), second.done()) == (True, False)
    waiters.wake(["orders"])
    assert await second is not None
    await waiters.close()
