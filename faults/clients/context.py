"""The context of a client: name, history, random numbers, addresses, and the signal to stop."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from faults.history import Content, Outcome, Writer
from skep import AsyncSkep
from skep.errors import SkepError, StaleLease
from skep.message import Message

DRAINING = "draining"  # a file in the directory of the round: producers have ended, consumers no longer pause
PADDING = 'abcdefghij "\\äß€\U0001f41d'


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of all clients of a round."""

    database: str
    ports: tuple[int, ...]  # of the servers
    seed: int = 0
    partitions: int = 6
    pause: float = 0.15  # seconds between two calls of a producer, on average
    think: float = 0.004  # seconds for a message, on average
    batch: int = 40  # of a pop, at most
    padding: int = 100  # bytes of a payload

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "Settings":
        return cls(**{**(values := json.loads(text)), "ports": tuple(values["ports"])})


@dataclass
class Me:
    """The context of one client."""

    name: str
    life: int
    settings: Settings
    directory: Path
    history: Writer
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.settings.seed} {self.name} {self.life}")
        self._count = 0

    @classmethod
    def create(cls, name: str, life: int, directory: Path, settings: Settings) -> "Me":
        return cls(name, life, settings, directory, Writer(directory / f"{name}.{life}.jsonl"))

    def value(self) -> str:
        self._count += 1
        return f"{self.name}.{self.life}.{self._count}"

    def partition(self) -> str:
        return f"partition {self.rng.randrange(self.settings.partitions)}"

    def content(self, partition: str, value: str, transaction_id: str | None = None) -> Content:
        """Return a message with this value, with a payload and headers that depend on it."""
        rng = random.Random(value)
        padding = "".join(rng.choices(PADDING, k=self.settings.padding))
        payload = {"v": value, "padding": padding, "numbers": [rng.randrange(2**53), rng.random(), None, True]}
        headers = {"of": value, "nested": {"n": rng.randrange(1000)}} if rng.random() < 0.5 else None
        return Content(partition, payload, headers, transaction_id)

    async def think(self, messages: int) -> None:
        """Simulate work on this many messages, except while the queues are drained."""
        if not (self.directory / DRAINING).exists():
            await self.pause(self.settings.think * messages)

    async def pause(self, average: float) -> None:
        """Wait for a random time, or until the client has to stop."""
        try:
            async with asyncio.timeout(self.rng.random() * 2 * average):
                await self.stopping.wait()
        except TimeoutError:
            pass


@asynccontextmanager
async def opened(me: Me, pool_size: int) -> AsyncGenerator[AsyncSkep]:
    """Yield a client of Skep, which connects at its first call: the database may be down now."""
    mq = AsyncSkep(me.settings.database, timeout=5, pool_size=pool_size)
    try:
        yield mq
    finally:
        await mq.close()


def row(message: Message) -> list[Any]:
    """Return a delivered message as the history stores it."""
    content = Content(message.partition, message.payload, message.headers, message.transaction_id)
    return [message.partition_id, message.offset, message.attempt, *content]


def partition_of(partition_id: str) -> int:
    """Return the partition id of a message id, as `skep.partition_of()` does."""
    digits = UUID(partition_id).hex
    return int(digits[:12] + digits[13:16], 16)


def outcome_of(error: Exception) -> Outcome:
    """Return the outcome of a call that raised an error."""
    if isinstance(error, StaleLease):
        return "refused"
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.Error) and cause.diag.severity_nonlocalized == "ERROR":
        return "failed"  # rolled back; FATAL, or a lost connection, may come after COMMIT
    if isinstance(error, SkepError) and not error.retryable:
        return "failed"
    return "unknown"
