"""Delayed messages and schedules."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that is not due yet."""

    id: UUID
    queue: str
    partition: str
    due_at: datetime
    payload: Any
    headers: dict[str, Any] | None
    transaction_id: str | None
    trace_id: UUID | None
    producer: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Schedule:
    """A periodic message. `error` is the reason if the queue refused its last tick."""

    name: str
    cron: str
    time_zone: str
    queue: str
    partition: str
    payload: Any
    headers: dict[str, Any] | None
    missed: Literal["skip", "one", "all"]
    paused: bool
    next_at: datetime
    last_at: datetime | None
    error: str | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The number of delayed messages appended to the log, and their queues."""

    messages: int
    queues: list[str]
