"""`for batch in queue.consume(...)`: the loop is the handler."""

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
from skep.client.source import Source


class AsyncStream(AsyncIterator[AsyncBatch]):
    """Batches, one after the other. Going on to the next acknowledges what the last one has not answered.

    Leaving the loop gives back what its batch has not answered, uncharged. `with batch:` inside the loop makes an
    exception a failure of the batch.
    """

    def __init__(self, database: AsyncDatabase, wakes: AsyncWakes, source: Source, plan: Plan, *, batch: int) -> None:
        self._handed: runtime.Inbox[AsyncBatch | BaseException | None] = runtime.Inbox()
        self._driver = AsyncDriver(database, wakes, source, replace(plan), batch=batch, start=self._handed.put)
        self._task: runtime.Task | None = None
        self._current: AsyncBatch | None = None
        self._ended = False
        self._stopped = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBatch:
        if self._ended:
            raise StopAsyncIteration
        if self._task is None:
            self._task = runtime.Task("consumer", self._run)
        if batch := self._current:
            self._current = None
            self._driver.finished(batch, [Answer(batch.lease, None, batch.rest)] if batch.open else [])
        handed: list[AsyncBatch | BaseException | None] = []
        while not handed:
            handed = await self._handed.take()
        first = handed[0]
        if isinstance(first, AsyncBatch):
            self._current = first
            return first
        self._ended = True
        raise first or StopAsyncIteration

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
        if self._task is None or self._ended:
            return
        self._ended = True
        self._driver.stop()
        if self._current is not None:
            self._give_back(self._current)
        while not self._stopped:
            for handed in await self._handed.take():
                if isinstance(handed, AsyncBatch):
                    self._give_back(handed)
                else:
                    self._stopped = True
        await self._task.join()

    def _give_back(self, batch: AsyncBatch) -> None:
        self._driver.finished(batch, [Answer(batch.lease, None, "retry")] if batch.open else [])
