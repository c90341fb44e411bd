"""`for batch in queue.consume(...)`: the loop is the handler."""

import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from skep.client.aio import runtime
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.driver import AsyncDriver
from skep.client.aio.wake import AsyncWakes
from skep.client.plan import Answer, Plan
from skep.scope import Scope


class AsyncStream(AsyncIterator[AsyncBatch]):
    """Batches, one after the other. Going on to the next acknowledges what the last one has not answered.

    Leaving the loop gives back what its batch has not answered, uncharged. `with batch:` inside the loop makes an
    exception a failure of the batch.
    """

    def __init__(self, database: AsyncDatabase, wakes: AsyncWakes, scope: Scope, plan: Plan, *, batch: int) -> None:
        self._handed: runtime.Inbox[AsyncBatch | BaseException | None] = runtime.Inbox()
        self._driver = AsyncDriver(database, wakes, scope, replace(plan), batch=batch, start=self._handed.put)
        self._task: runtime.Task | None = None
        self._current: AsyncBatch | None = None
        self._changing = threading.Lock()  # a client that is closed ends the loops of its other threads
        self._ended = False
        self._stopped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBatch:
        with self._changing:
            if self._ended:
                raise StopAsyncIteration
            if self._task is None:
                self._task = runtime.Task("consumer", self._run)
            batch, self._current = self._current, None
        if batch is not None:
            self._driver.finished(batch, [Answer(batch.lease, None, batch.rest)] if batch.open else [])
        first = await self._next_handed()
        with self._changing:
            closed = self._ended
            if isinstance(first, AsyncBatch) and not closed:
                self._current = first
                return first
            self._ended = True
        if closed:
            self._handed.put(first)  # for close()
        elif isinstance(first, BaseException):
            raise first
        raise StopAsyncIteration

    async def _next_handed(self) -> AsyncBatch | BaseException | None:
        handed: list[AsyncBatch | BaseException | None] = []
        while not handed:
            handed = await self._handed.take()
        for later in handed[1:]:  # the error that ended the driver after its last batch
            self._handed.put(later)
        return handed[0]

    async def _run(self) -> None:
        try:
            await self._driver.run()
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever iterates
            self._handed.put(error)
        else:
            self._handed.put(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the loop: what is leased and not answered is given back."""
        with self._changing:
            closing, self._ended = not self._ended, True
            current, self._current = self._current, None
        if self._task is None:
            return
        if closing:
            self._driver.stop()
            if current is not None:
                self._give_back(current)
            while not self._stopped:
                for handed in await self._handed.take():
                    if isinstance(handed, AsyncBatch):
                        self._give_back(handed)
                    else:
                        self._stopped = True
            self._handed.put(None)  # for one who waits for the next batch
        await self._task.join()

    def _give_back(self, batch: AsyncBatch) -> None:
        self._driver.finished(batch, [Answer(batch.lease, None, "release")] if batch.open else [])
