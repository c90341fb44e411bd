"""Requests that wait for messages: one that has its result is not served again, however many wait."""

import asyncio
from typing import Any, NamedTuple

from skep.scope import Scope
from skep.server.work.waiters import MERGED, PopOptions, Waiters

OPTIONS = PopOptions(Scope("orders"), auto_ack=True)


class Got(NamedTuple):
    request: int


class Popper:
    """Serves a given number of requests of each call and notes how many it got; `open` makes a call take its time."""

    def __init__(self, *serves: int) -> None:
        self.serves = list(serves)
        self.calls: list[int] = []
        self.open = asyncio.Event()
        self.open.set()

    async def pop(self, arguments: dict[str, Any]) -> list[Got]:
        asked = len(arguments["batches"])
        self.calls.append(asked)
        await self.open.wait()
        return [Got(n) for n in range(1, 1 + min(asked, self.serves.pop(0) if self.serves else 0))]

    async def release(self, popped: Got) -> None:
        raise AssertionError(f"no client disconnected, but {popped} was released")


class Database:
    """Says that no group has work."""

    async def value(self, _query: str, arguments: dict[str, Any]) -> list[bool]:
        return [False for _ in arguments.get("queues", ())]


def waiting(popper: Popper) -> Waiters[Got]:
    database: Any = Database()
    return Waiters(database, popper, max_pending=1000, merged=lambda _: None)


async def test_a_request_that_got_nothing_is_not_part_of_the_next_call():
    """With auto ack, messages for such a request would be lost: its client has the response already."""
    popper = Popper(0, MERGED)
    popper.open.clear()
    waiters = waiting(popper)
    requests = [asyncio.create_task(waiters.pop(OPTIONS, 1, 1, 0)) for _ in range(MERGED + 20)]
    await asyncio.sleep(0.01)
    waiters.wake(["orders"])  # a push while the first call is under way
    popper.open.set()
    results = await asyncio.gather(*requests)
    delivered = sum(result is not None for result in results)
    asked_later = sum(popper.calls[1:])
    assert asked_later == delivered
    await waiters.close()


async def test_waiting_requests_keep_their_order():
    popper = Popper(0, 1, 1)
    waiters = waiting(popper)
    first, second = (asyncio.create_task(waiters.pop(OPTIONS, 1, 1, 5)) for _ in range(2))
    await asyncio.sleep(0.01)
    waiters.wake(["orders"])
    await asyncio.wait([first], timeout=2)
    assert (first.done(), second.done()) == (True, False)
    waiters.wake(["orders"])
    assert await second is not None
    await waiters.close()
