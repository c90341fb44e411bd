"""Concurrent requests of one kind become one database call: no delay when it is idle, and more in a call under load.

    requests ── waiting ──┬── call under way ── answers
                          └── whatever came meanwhile is the next call

A call that the database refuses is halved until the one bad request is alone: the others never notice it. Only if it is
the database itself that fails, all of them hear it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from skep.errors import TransientError
from skep.server.http.asgi import Overloaded

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Merger(Generic[Call, Answer]):
    """Calls `run` with all requests that wait, as far as `max_weight` goes; at most `parallel` calls at a time."""

    def __init__(
        self,
        run: Callable[[Sequence[Call]], Awaitable[Sequence[Answer]]],
        *,
        weigh: Callable[[Call], int],
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
        self._waiting: deque[tuple[Call, asyncio.Future[Answer]]] = deque()
        self._scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, call: Call) -> Answer:
        """Be part of the next database call, and return what it answered to this request."""
        if len(self._waiting) >= self._max_pending:
            raise Overloaded
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((call, future))
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

    def _take(self) -> list[tuple[Call, asyncio.Future[Answer]]]:
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

    async def _work(self, batch: list[tuple[Call, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._run([call for call, _ in batch])
        except Exception as error:  # noqa: BLE001  whatever it is, somebody has to hear it
            if len(batch) == 1 or isinstance(error, TransientError):
                _fail(batch, error)
            else:
                middle = len(batch) // 2
                await self._work(batch[:middle])
                await self._work(batch[middle:])
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def drain(self) -> None:
        """Wait for everything that was accepted."""
        while self._tasks or self._waiting:
            await asyncio.wait(self._tasks) if self._tasks else await asyncio.sleep(0)


def _fail(batch: list[tuple[Call, asyncio.Future[Answer]]], error: Exception) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
