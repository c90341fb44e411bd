"""Maintenance mode of all servers together: pushes are held in the database and stored when it ends, pops pause.

    push ──┬── usual: stored
           ├── push maintenance mode: held
           └── just ended: held pushes are stored first, so that no push overtakes them

Each server reads the mode once a second. A server that has not seen the beginning stores as usual. Each sees the end
before it holds another push, because the database refuses to hold it then.
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

log = logging.getLogger("skep.server")

FRESH = 1.0  # seconds


class MaintenanceMode:
    """The maintenance mode as this server knows it, and what it does about it."""

    def __init__(
        self,
        mq: AsyncSkep,
        database: AsyncDatabase,
        pause_pops: Callable[[bool], None],
        pushed: Callable[[Iterable[str]], None],
    ) -> None:
        self._mq = mq
        self._database = database
        self._pause_pops = pause_pops
        self._pushed = pushed
        self._status: MaintenanceStatus | None = None
        self._asking = asyncio.Lock()
        self._draining = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None
        self.in_the_way = True  # a push has to call hold() first; also while the mode is not known yet

    @property
    def status(self) -> MaintenanceStatus | None:
        """Return the mode of a second ago; None: not known yet."""
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
                log.debug("could not read the maintenance mode: %s", error)
            except Exception:
                log.exception("could not read the maintenance mode")
            await asyncio.sleep(FRESH)

    async def refresh(self) -> MaintenanceStatus:
        """Read the mode. Reads do not overlap, so the last result is the latest."""
        async with self._asking:
            status = self._status = await self._mq.maintenance()
            self.in_the_way = status.push or status.is_pending
            self._pause_pops(status.pop)
            return status

    async def switch(self, *, push: bool | None = None, pop: bool | None = None) -> MaintenanceStatus:
        """Begin or end the mode. At its end all held pushes are stored."""
        await self._mq.set_maintenance(push=push, pop=pop)
        status = await self.refresh()
        if push is False:
            await self._drain()
            status = await self.refresh()
        return status

    async def hold(self, push: Push) -> bool:
        """Return true if a push is held. If it is not, all pushes that were held before it are stored now."""
        status = self._status or await self.refresh()
        while status.push:
            if await self._database.value(calls.HOLD_PUSH, {"messages": f"[{push.encoded}]"}):
                return True
            status = await self.refresh()  # the mode has ended since the last refresh
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
