"""The state that all requests of a server process share."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from skep import AsyncSkep
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.wake import AsyncWakes
from skep.config import Config
from skep.server.http.asgi import Budget
from skep.server.http.auth import Authenticator
from skep.server.http.members import Members
from skep.server.http.metrics import Board, Counts, Meter, Worker
from skep.server.work import push
from skep.server.work.crypt import Keyring
from skep.server.work.maintenance_mode import MaintenanceMode
from skep.server.work.merge import Merger
from skep.server.work.sealed import SealedQueues
from skep.server.work.waiters import Popper, Waiters

PUSH_BYTES = 4 * 1024 * 1024  # of merged pushes in one call
BODIES = 512 * 1024 * 1024  # of bodies that are being read
WRITE = 1.0  # seconds between two writes of the counters for the other processes
PATIENCE = 4.0  # seconds for a connection: clients give up on a long poll 5 s after its timeout


class Part(Protocol):
    """An object that the requests of a protocol share: made when it is first needed, drained at the end."""

    def __init__(self, state: "State") -> None: ...
    async def drain(self) -> None: ...


P = TypeVar("P", bound=Part)


class State:
    """The database, the mergers in front of it, and the rights of callers.

    There are three pools, so that one kind of work does not wait for another: messages, lists, and the client's calls.
    """

    def __init__(self, config: Config, shared: Path | None = None) -> None:
        self.config = config
        self.meter = Meter()
        self.members = Members()
        self._board = None if shared is None else Board(shared)
        self._writer: asyncio.Task[None] | None = None
        url, data_dir = config.database_url, config.data_dir
        self.mq = AsyncSkep(url, data_dir=data_dir, pool_size=4, timeout=PATIENCE)  # commands of people
        self.database = AsyncDatabase(url, data_dir=data_dir, pool_size=12, timeout=PATIENCE)
        self.admin = AsyncDatabase(url, data_dir=data_dir, pool_size=4, timeout=PATIENCE)  # lists
        self.wakes = AsyncWakes(self.database, self.wake)
        self.push = Merger(
            push.Pusher(self.database, partial(self.meter.messages, "pushed")),
            weigh=push.weigh,
            max_weight=PUSH_BYTES,
            parallel=2,
            max_pending=config.max_pending,
            merged=self.meter.merged("push"),
        )
        self.budget = Budget(BODIES)
        self.authenticator = Authenticator(config, self.mq.find_api_key)
        self.keyring = Keyring.load(config.encryption_keys)
        self.sealed = SealedQueues(self.database)
        self.maintenance = MaintenanceMode(self.mq, self.database, self._pause_pops, self.pushed)
        self.stopping = asyncio.Event()
        self._parts: dict[type, Any] = {}
        self._waiters: list[Waiters[Any]] = []

    async def __aenter__(self) -> Self:
        self.wakes.listen()
        self.maintenance.start()
        if self._board is not None:
            self._writer = asyncio.create_task(self._write_down(self._board))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End waiting polls, finish accepted requests, and close the connections."""
        await self.stop()
        await self.maintenance.close()
        await self.push.drain()
        for part in self._parts.values():
            await part.drain()
        await self.wakes.close()
        await self.mq.close()
        await self.admin.close()
        await self.database.close()
        if self._writer is not None and self._board is not None:
            self._writer.cancel()
            self._board.write(self._measure())

    async def stop(self) -> None:
        self.stopping.set()
        for waiters in self._waiters:
            await waiters.close()

    def part(self, kind: type[P]) -> P:
        """Return the one object of this kind."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        return self._parts[kind]

    def wait_with(self, popper: Popper[Any]) -> Waiters[Any]:
        """Return waiters for the pops of a protocol: they are woken, paused and ended with the others."""
        merged = self.meter.merged("pop")
        waiters = Waiters(self.database, popper, max_pending=self.config.max_pending, merged=merged)
        waiters.pause(paused=self.maintenance.status is not None and self.maintenance.status.pop)
        self._waiters.append(waiters)
        return waiters

    def wake(self, queues: Iterable[str] | None) -> None:
        named = None if queues is None else set(queues)
        for waiters in self._waiters:
            waiters.wake(named)

    def _pause_pops(self, paused: bool) -> None:  # noqa: FBT001
        for waiters in self._waiters:
            waiters.pause(paused=paused)

    def measured(self) -> tuple[list[Worker], Counts]:
        """Return the counts of all processes of this server: of each, and together."""
        if self._board is None:
            here = self._measure()
            return [here], here.counts
        return self._board.read()

    def _measure(self) -> Worker:
        return self.meter.read(self.database.pool_stats(), self.waiting_by_queue(), self.members.here())

    def waiting_by_queue(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for waiters in self._waiters:
            for queue, number in waiters.waiting_by_queue().items():
                counts[queue] = counts.get(queue, 0) + number
        return counts

    async def _write_down(self, board: Board) -> None:
        while True:
            board.write(self._measure())
            await asyncio.sleep(WRITE)

    def pushed(self, queues: Iterable[str]) -> None:
        """Wake the requests that wait for these queues, here and in other processes."""
        self.wakes.pushed(set(queues))
