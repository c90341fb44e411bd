"""The iterator behind `async for batch in queue.consume(...)`."""

import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from skep.client.aio import runtime
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.driver import AsyncDriver
from skep.client.aio.wake import AsyncWakeups
from skep.client.plan import Ack, Plan
from skep.scope import Scope


class AsyncStream(AsyncIterator[AsyncBatch]):
    """Iterates over batches. Asking for the next batch acknowledges the remaining messages of the previous one.

    Leaving the loop releases them without counting an attempt. With `async with batch:` inside the loop an exception
    fails the batch.
    """

    def __init__(self, database: AsyncDatabase, wakeups: AsyncWakeups, scope: Scope, plan: Plan, *, batch: int) -> None:
        self._inbox: runtime.Inbox[AsyncBatch | BaseException | None] = runtime.Inbox()
        self._driver = AsyncDriver(database, wakeups, scope, replace(plan), batch=batch, start=self._inbox.put)
        self._task: runtime.BackgroundTask | None = None
        self._current: AsyncBatch | None = None
        self._changing = threading.Lock()  # closing the client ends loops in other threads
        self._ended = False
        self._stopped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBatch:
        with self._changing:
            if self._ended:
                raise StopAsyncIteration
            if self._task is None:
                self._task = runtime.BackgroundTask("consumer", self._run)
            batch, self._current = self._current, None
        if batch is not None:
            self._driver.finished(batch, [Ack(batch.lease, None, batch.remaining_status)] if batch.open else [])
        first = await self._next_item()
        with self._changing:
            closed = self._ended
            if isinstance(first, AsyncBatch) and not closed:
                self._current = first
                return first
            self._ended = True
        if closed:
            self._inbox.put(first)  # for close()
        elif isinstance(first, BaseException):
            raise first
        raise StopAsyncIteration

    async def _next_item(self) -> AsyncBatch | BaseException | None:
        items: list[AsyncBatch | BaseException | None] = []
        while not items:
            items = await self._inbox.take()
        for later in items[1:]:  # the error that ended the driver after its last batch
            self._inbox.put(later)
        return items[0]

    async def _run(self) -> None:
        try:
            await self._driver.run()
        except BaseException as error:  # noqa: BLE001  # raised in the loop of the caller
            self._inbox.put(error)
        else:
            self._inbox.put(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the loop and release the messages that are not acknowledged."""
        with self._changing:
            closing, self._ended = not self._ended, True
            current, self._current = self._current, None
        if self._task is None:
            return
        if closing:
            self._driver.stop()
            if current is not None:
                self._release(current)
            while not self._stopped:
                for item in await self._inbox.take():
                    if isinstance(item, AsyncBatch):
                        self._release(item)
                    else:
                        self._stopped = True
            self._inbox.put(None)  # for a caller that waits for the next batch
        await self._task.join()

    def _release(self, batch: AsyncBatch) -> None:
        self._driver.finished(batch, [Ack(batch.lease, None, "release")] if batch.open else [])
