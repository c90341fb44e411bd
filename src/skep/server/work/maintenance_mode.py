"""Maintenance of all servers together: pushes are held in the database and stored when it is over, pops pause.

    push ──┬── usual: stored
           ├── push maintenance: held, answered "buffered"
           └── just over: what is held is stored first, so that nothing overtakes it

Each server asks once a second what holds. One that has not heard of the beginning stores as usual; of the end each
hears before it holds anything more, for the database refuses to hold then.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from skep import AsyncSkep
from skep.client.aio.database import AsyncDatabase
from skep.errors import SkepError
from skep.message import MaintenanceStatus
from skep.server.work import calls
from skep.server.work.push import Push
from skep.server.work.waiters import Lines

log = logging.getLogger("skep.server")

FRESH = 1.0  # seconds


class Maintenance:
    """What this server knows of maintenance, and what it does about it."""

    def __init__(
        self, mq: AsyncSkep, database: AsyncDatabase, lines: Lines, pushed: Callable[[Iterable[str]], None]
    ) -> None:
        self._mq = mq
        self._database = database
        self._lines = lines
        self._pushed = pushed
        self._status: MaintenanceStatus | None = None
        self._asking = asyncio.Lock()
        self._draining = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self.in_the_way = True  # a push has to ask hold() first; so it is until we know better

    @property
    def status(self) -> MaintenanceStatus | None:
        """What was true a second ago; None: not known yet."""
        return self._status

    def start(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def close(self) -> None:
        while self._watcher is not None and not self._watcher.done():
            self._watcher.cancel()  # more than once: while it waits for the pool, wait_for of Python 3.11 may lose it
            await asyncio.wait([self._watcher], timeout=0.1)

    async def _watch(self) -> None:
        while True:
            try:
                await self.refresh()
            except SkepError as error:
                log.debug("could not ask for maintenance: %s", error)
            except Exception:
                log.exception("could not ask for maintenance")
            await asyncio.sleep(FRESH)

    async def refresh(self) -> MaintenanceStatus:
        """Ask what holds; one after the other, so that the last answer is the latest."""
        async with self._asking:
            status = self._status = await self._mq.maintenance()
            self.in_the_way = status.push or status.is_pending
            self._lines.pause(paused=status.pop)
            return status

    async def switch(self, *, push: bool | None = None, pop: bool | None = None) -> MaintenanceStatus:
        """Begin or end maintenance; at the end everything is stored that was held."""
        await self._mq.set_maintenance(push=push, pop=pop)
        status = await self.refresh()
        if push is False:
            await self._drain()
            status = await self.refresh()
        return status

    async def hold(self, push: Push) -> bool:
        """Tell whether a push is held; if it is not, everything that was held before it is stored now."""
        status = self._status or await self.refresh()
        while status.push:
            if await self._database.value(calls.HOLD_PUSH, {"messages": f"[{push.encoded}]"}):
                return True
            status = await self.refresh()  # it is over, and we had not heard of it
        if status.is_pending:
            await self._drain()
        return False

    async def _drain(self) -> None:
        async with self._draining:
            while self._status is not None and self._status.is_pending and not self._status.push:
                drained = await self._mq.drain_held_pushes()
                self._pushed(drained.queues)
                if drained.refused:
                    log.error("%d held pushes were refused; see skep.held_pushes", drained.refused)
                if not drained.messages and not drained.refused:
                    await self.refresh()
