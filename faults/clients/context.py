"""What every client has: a name, a history, dice, the addresses, and when to stop."""

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

from faults.history import Outcome, Writer
from faults.state import AGAIN
from skep import AsyncSkep
from skep.errors import SkepError, StaleLease
from skep.message import Message


@dataclass(frozen=True, slots=True)
class Settings:
    """The same for all clients of a round."""

    database: str
    ports: tuple[int, ...]  # of the servers
    seed: int = 0
    lanes: int = 6
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
    """A client."""

    name: str
    life: int
    settings: Settings
    history: Writer
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.settings.seed} {self.name} {self.life}")
        self._count = 0

    @classmethod
    def born(cls, name: str, life: int, directory: Path, settings: Settings) -> "Me":
        return cls(name, life, settings, Writer(directory / f"{name}.{life}.jsonl"))

    def value(self) -> str:
        self._count += 1
        return f"{self.name}.{self.life}.{self._count}"

    def lane(self) -> str:
        return f"lane {self.dice.randrange(self.settings.lanes)}"

    def payload(self, value: str) -> dict[str, str]:
        return {"v": value, "padding": "x" * self.settings.padding}

    async def pause(self, average: float) -> None:
        """Wait, but not after being told to stop."""
        try:
            async with asyncio.timeout(self.dice.random() * 2 * average):
                await self.stopping.wait()
        except TimeoutError:
            pass


@asynccontextmanager
async def opened(me: Me, pool_size: int) -> AsyncGenerator[AsyncSkep]:
    """A client of Skep, which connects at its first call: the database may be down now."""
    mq = AsyncSkep(me.settings.database, timeout=5, pool_size=pool_size)
    try:
        yield mq
    finally:
        await mq.close()


def value_of(payload: dict[str, Any], headers: dict[str, Any] | None) -> str:
    return payload["v"] + (AGAIN if headers and "skep-redriven" in headers else "")


def row(message: Message) -> list[Any]:
    """Write a delivered message down."""
    return [message.partition_id, message.offset, value_of(message.payload, message.headers), message.attempt]


def lane_of(partition_id: str) -> int:
    """Return the number in the address of a partition, as `skep.partition_of()` does."""
    digits = UUID(partition_id).hex
    return int(digits[:12] + digits[13:16], 16)


def outcome_of(error: Exception) -> Outcome:
    """Tell what an error of a call means for what it wanted done."""
    if isinstance(error, StaleLease):
        return "refused"
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    if isinstance(cause, psycopg.Error) and cause.diag.severity_nonlocalized == "ERROR":
        return "failed"  # the transaction was undone; what ends a session (FATAL, or silence) may come after its COMMIT
    if isinstance(error, SkepError) and not error.retryable:
        return "failed"
    return "unknown"
