"""Merge concurrent requests of one kind into one database call: no delay when idle, more requests a call under load.

    requests ── waiting ──┬── call under way ── results
                          └── requests that came meanwhile are the next call

A call that the database refuses is halved until the bad request is alone, so the others are not affected. If the
database itself fails, all requests of the call fail.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from skep.errors import Overloaded, TransientError

Request = TypeVar("Request")
Result = TypeVar("Result")


class Merger(Generic[Request, Result]):
    """Calls `run` with all requests that wait, as far as `max_weight` goes; at most `parallel` calls at a time."""

    def __init__(
        self,
        run: Callable[[Sequence[Request]], Awaitable[Sequence[Result]]],
        *,
        weigh: Callable[[Request], int],
        max_weight: int,
        parallel: int,
        max_pending: int,
        merged: Callable[[float], None],
    ) -> None:
        self._run = run
        self._weigh = weigh
        self._max_weight = max_weight
        self._max_pending = max_pending
        self._free = parallel
        self._merged = merged
        self._waiting: deque[tuple[Request, asyncio.Future[Result]]] = deque()
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, request: Request) -> Result:
        """Return the result of this request, which is part of the next database call."""
        if len(self._waiting) >= self._max_pending:
            raise Overloaded
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((request, future))
        if self._free and not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)  # after the requests that came in the same turn of the loop
        return await future

    def _flush(self) -> None:
        self._scheduled = False
        while self._free and self._waiting:
            self._free -= 1
            task = asyncio.create_task(self._work(self._take()))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _take(self) -> list[tuple[Request, asyncio.Future[Result]]]:
        batch = [self._waiting.popleft()]
        weight = self._weigh(batch[0][0])
        while self._waiting:
            weight += self._weigh(self._waiting[0][0])
            if weight > self._max_weight:
                break
            batch.append(self._waiting.popleft())
        self._merged(len(batch))
        return batch

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._free += 1
        self._flush()

    async def _work(self, batch: list[tuple[Request, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._run([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001  every request has to get it
            if len(batch) == 1 or isinstance(error, TransientError):
                _fail(batch, error)
            else:
                middle = len(batch) // 2
                await self._work(batch[:middle])
                await self._work(batch[middle:])
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def drain(self) -> None:
        """Wait for everything that was accepted."""
        while self._tasks or self._waiting:
            await asyncio.wait(self._tasks) if self._tasks else await asyncio.sleep(0)


def _fail(batch: list[tuple[Request, asyncio.Future[Result]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
