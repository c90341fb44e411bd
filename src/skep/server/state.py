"""What all requests of a server process share."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Self

from skep import AsyncSkep
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.wake import AsyncWakeups
from skep.config import Config
from skep.server import ack, push
from skep.server.auth import Authenticator
from skep.server.crypt import Keyring
from skep.server.http import Budget
from skep.server.maintenance import Maintenance
from skep.server.members import Members
from skep.server.merge import Merger
from skep.server.meter import Board, Counts, Meter, Worker
from skep.server.pop import Lines
from skep.server.sealed import SealedQueues

PUSH_BYTES = 4 * 1024 * 1024  # of merged pushes in one call
ACKS = 5_000  # of merged answers in one call
BODIES = 512 * 1024 * 1024  # of bodies that are being read
WRITE = 1.0  # seconds between the notes for the other processes
PATIENCE = 4.0  # seconds for a connection: clients give up on a long poll 5 s after its timeout


class State:
    """The database, the mergers in front of it, and who may call."""

    def __init__(self, config: Config, shared: Path | None = None) -> None:
        self.config = config
        self.meter = Meter()
        self.members = Members()
        self._board = None if shared is None else Board(shared)
        self._writer: asyncio.Task[None] | None = None
        url, data_dir = config.database_url, config.data_dir
        self.mq = AsyncSkep(url, data_dir=data_dir, pool_size=4, timeout=PATIENCE)  # admin calls: never in the way
        self.database = AsyncDatabase(url, data_dir=data_dir, pool_size=12, timeout=PATIENCE)
        self.admin = AsyncDatabase(url, data_dir=data_dir, pool_size=4, timeout=PATIENCE)  # lists
        self.lines = Lines(self.database, max_pending=config.max_pending, merged=self.meter.merged("pop"))
        self.wakes = AsyncWakeups(self.database, self.lines.wake)
        self.push = Merger(
            push.Pusher(self.database, partial(self.meter.messages, "pushed")),
            weigh=push.weigh,
            max_weight=PUSH_BYTES,
            parallel=2,
            max_pending=config.max_pending,
            merged=self.meter.merged("push"),
        )
        self.ack = Merger(
            ack.Acker(self.database),
            weigh=ack.weigh,
            max_weight=ACKS,
            parallel=2,
            max_pending=config.max_pending,
            merged=self.meter.merged("ack"),
        )
        self.budget = Budget(BODIES)
        self.authenticator = Authenticator(config, self.mq.find_api_key)
        self.keyring = Keyring.load(config.encryption_keys)
        self.sealed = SealedQueues(self.database)
        self.maintenance = Maintenance(self.mq, self.database, self.lines, self.pushed)
        self.stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.wakes.listen()
        self.maintenance.start()
        if self._board is not None:
            self._writer = asyncio.create_task(self._write_down(self._board))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer who is parked, finish what was accepted, and let go of the database."""
        await self.stop()
        await self.maintenance.close()
        await self.push.drain()
        await self.ack.drain()
        await self.wakes.close()
        await self.mq.close()
        await self.admin.close()
        await self.database.close()
        if self._writer is not None and self._board is not None:
            self._writer.cancel()
            self._board.write(self._measure())

    async def stop(self) -> None:
        self.stopping.set()
        await self.lines.close()

    def measured(self) -> tuple[list[Worker], Counts]:
        """Return what all processes of this server have counted: each of them, and together."""
        if self._board is None:
            here = self._measure()
            return [here], here.counts
        return self._board.read()

    def _measure(self) -> Worker:
        return self.meter.read(self.database.pool_stats(), self.lines.parked_by_queue(), self.members.here())

    async def _write_down(self, board: Board) -> None:
        while True:
            board.write(self._measure())
            await asyncio.sleep(WRITE)

    def pushed(self, queues: Iterable[str]) -> None:
        """Wake who waits for these queues, here and in other processes."""
        self.wakes.pushed(set(queues))
