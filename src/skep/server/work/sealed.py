"""The encrypted queues, as of two seconds ago at most: for that time other servers may store plain payloads."""

import asyncio
from time import monotonic

from skep.client.aio.database import AsyncDatabase
from skep.server.work import calls

FRESH = 2.0


class SealedQueues:
    """The names of the queues whose payloads are sealed. A push waits until they are known."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database
        self._asking: asyncio.Task[frozenset[str]] | None = None
        self._until = 0.0

    async def names(self) -> frozenset[str]:
        if self._asking is None or monotonic() > self._until:
            self._until = monotonic() + FRESH
            self._asking = asyncio.create_task(self._ask())
        asking = self._asking
        try:
            return await asyncio.shield(asking)  # many requests wait for it
        except BaseException:
            if self._asking is asking and asking.done():
                self.forget()
            raise

    async def _ask(self) -> frozenset[str]:
        return frozenset(await self._database.call(calls.SEALED_QUEUES, {}, str))

    def forget(self) -> None:
        """Read the names again before the next push."""
        self._asking = None
