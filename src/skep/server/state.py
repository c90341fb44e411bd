"""What all requests of a server process share."""

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Self

from skep import AsyncSkep
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.wake import AsyncWakes
from skep.config import Config
from skep.message import ApiKey
from skep.server import ack, push
from skep.server.auth import Authenticator
from skep.server.crypt import Keyring
from skep.server.http import Budget
from skep.server.maintenance import Maintenance
from skep.server.merge import Merger
from skep.server.pop import Lines
from skep.server.sealed import SealedQueues

PUSH_BYTES = 4 * 1024 * 1024  # of merged pushes in one call
ACKS = 5_000  # of merged answers in one call
BODIES = 512 * 1024 * 1024  # of bodies that are being read
PATIENCE = 4.0  # seconds for a connection: clients give up on a long poll 5 s after its timeout


class State:
    """The database, the mergers in front of it, and who may call."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.started = monotonic()
        url, data_dir = config.database_url, config.data_dir
        self.mq = AsyncSkep(url, data_dir=data_dir, pool_size=4, timeout=PATIENCE)  # admin calls: never in the way
        self.database = AsyncDatabase(url, data_dir=data_dir, pool_size=12, timeout=PATIENCE)
        self.lines = Lines(self.database, max_pending=config.max_pending)
        self.wakes = AsyncWakes(self.database, self.lines.wake)
        self.push = Merger(
            push.Pusher(self.database),
            weigh=push.weigh,
            max_weight=PUSH_BYTES,
            parallel=2,
            max_pending=config.max_pending,
        )
        self.ack = Merger(
            ack.Acker(self.database), weigh=ack.weigh, max_weight=ACKS, parallel=2, max_pending=config.max_pending
        )
        self.budget = Budget(BODIES)
        self.authenticator = Authenticator(config, self._find_key)
        self.keyring = Keyring.load(config.encryption_keys)
        self.sealed = SealedQueues(self.database)
        self.maintenance = Maintenance(self.mq, self.database, self.lines, self.pushed)
        self.stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.wakes.listen()
        self.maintenance.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer who is parked, finish what was accepted, and let go of the database."""
        await self.stop()
        await self.maintenance.close()
        await self.push.drain()
        await self.ack.drain()
        await self.wakes.close()
        await self.mq.close()
        await self.database.close()

    async def stop(self) -> None:
        self.stopping.set()
        await self.lines.close()

    def pushed(self, queues: Iterable[str]) -> None:
        """Wake who waits for these queues, here and in other processes."""
        self.wakes.pushed(set(queues))

    async def _find_key(self, id_: str, given: bytes) -> ApiKey | None:
        return await self.mq.find_api_key(id_, given)
