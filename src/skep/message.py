"""The values people meet: what they push, what they get back, what they consume.

The two that come by the hundred are named tuples: a frozen dataclass takes 2.3 µs to make, these 0.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

QUEUE_MODE = "__QUEUE_MODE__"  # the group of consumers that give none: they share the queue between them
DEFAULT_PARTITION = "Default"


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to push; `payload` is anything JSON can hold."""

    payload: Any
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    headers: Mapping[str, Any] | None = None
    trace_id: UUID | str | None = None


class Receipt(NamedTuple):
    """Where a pushed message is stored; `duplicate`: its transaction id was there already, and so was the message."""

    status: Literal["queued", "duplicate"]
    id: UUID
    partition_id: int
    offset: int
    created_at: datetime


class Message(NamedTuple):
    """A delivered message: the fields of `skep.delivery`, in its order."""

    queue: str
    partition: str
    offset: int
    id: UUID
    payload: Any
    headers: dict[str, Any] | None
    transaction_id: str | None
    trace_id: UUID | None
    producer: str | None
    created_at: datetime
    attempt: int
    partition_id: int
    lease: UUID
    lease_expires_at: datetime


@dataclass(frozen=True, slots=True)
class Lane:
    """A partition of a queue, and how many messages it holds."""

    queue: str
    partition: str
    partition_id: int
    first_offset: int
    last_offset: int
    messages: int
    last_message_id: UUID | None
    last_created_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Lag:
    """What a group has still to do in a lane."""

    queue: str
    partition: str
    cursor: int
    last_offset: int
    lag: int
    leased: int
    last_consumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """Where a group starts; None in a name means any."""

    group: str
    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    mode: str
    start_at: datetime | None
    start_offset: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue, its size and its options."""

    name: str
    namespace: str
    task: str
    partitions: int
    messages: int
    last_created_at: datetime | None
    groups: int
    dead_letters: int
    options: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group on a queue."""

    group: str
    queue: str
    mode: str | None
    partitions: int
    lag: int
    leased: int
    last_consumed_at: datetime | None
    dead_letters: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A full copy of a message that a group has given up."""

    id: int
    group: str
    queue: str
    partition: str
    partition_id: int
    offset: int
    created_at: datetime
    payload: Any
    headers: dict[str, Any] | None
    transaction_id: str | None
    trace_id: UUID | None
    producer: str | None
    error: str
    attempts: int
    failed_at: datetime
