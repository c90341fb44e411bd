"""The values people meet: what they push, what they get back, what they consume."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

QUEUE_MODE = "__QUEUE_MODE__"  # the group of consumers that give none: they share the queue between them
DEFAULT_PARTITION = "Default"

Status = Literal["ACTIVE", "PAUSED", "CANCELLED", "DEAD"]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to push; `payload` is anything JSON can hold."""

    payload: Any
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    headers: Mapping[str, Any] | None = None
    trace_id: UUID | str | None = None
    delay: float | timedelta | None = None
    deliver_at: datetime | None = None


class Receipt(NamedTuple):  # it comes by the hundred: a frozen dataclass takes 2.3 µs to make, this 0.4
    """Where a pushed message is stored; `duplicate`: its transaction id was there already, and so was the message."""

    status: Literal["queued", "duplicate", "delayed"]
    id: UUID
    partition_id: int
    offset: int | None
    created_at: datetime
    due_at: datetime | None = None  # of a delayed message: it has no offset yet, and its id is for `cancel_delayed`


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
class StoredMessage:
    """A message as it is stored. `deleted`: its content is gone, its offset stays."""

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
    deleted: bool


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
class SeekResult:
    """How many partitions moved, how many pending messages are skipped, and how many completed ones come again."""

    partitions: int
    skipped: int
    again: int


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
    status: Status
    backfill: bool
    heartbeat_interval: float
    heartbeat_timeout: float
    miss_threshold: int
    last_heartbeat_at: datetime
    status_changed_at: datetime
    created_at: datetime
    retry_limit: int | None  # of these four, None is the option of the queue
    retry_delay: float | None
    max_retry_delay: float | None
    retry_jitter: float | None


@dataclass(frozen=True, slots=True)
class Defaults:
    """The mode of groups that name none, and the longest time between two polls: `new` looks back twice as far."""

    subscription_mode: str
    max_poll_interval: float


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
    delayed: int
    options: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group on a queue, and how it is."""

    group: str
    queue: str
    status: Status
    mode: str | None
    partitions: int
    lag: int
    leased: int
    processed: int
    dead_letters: int
    missed: int
    last_consumed_at: datetime | None
    last_heartbeat_at: datetime | None
    misses: int
    oldest_pending_at: datetime | None


@dataclass(frozen=True, slots=True)
class Blocked:
    """What a group owes in a lane. `is_floor`: nobody is further behind, so the lane is kept for it."""

    queue: str
    partition: str
    group: str
    status: Status
    position: int
    pending: int
    leased: int
    oldest_pending_at: datetime | None
    is_floor: bool


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """A group that a message is for."""

    group: str
    status: Status
    required: bool
    completed: bool
    state: Literal["completed", "leased", "waiting", "pending", "released"]


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """The fan-out of a message."""

    offset: int
    id: UUID
    created_at: datetime
    required_consumer_groups: int
    completed_consumer_groups: int
    pending_groups: list[str]


@dataclass(frozen=True, slots=True)
class Detected:
    """A group that gave no sign of life for too long, and whether that was its end."""

    group: str
    queue: str | None
    namespace: str | None
    task: str | None
    last_heartbeat_at: datetime
    overdue_seconds: float
    misses: int
    died: bool

    @property
    def scope(self) -> str:
        return self.queue or f"{self.namespace or '*'}.{self.task or '*'}"


@dataclass(frozen=True, slots=True)
class Retained:
    """What retention took from a lane, or would: [first_offset, end_offset), and how much of it was still owed."""

    queue: str
    partition: str
    partition_id: int
    rule: str
    first_offset: int
    end_offset: int
    missed: int

    @property
    def messages(self) -> int:
        return self.end_offset - self.first_offset


@dataclass(frozen=True, slots=True)
class Swept:
    """What retention took from all lanes: messages, how many of them were still owed, and lanes that were idle."""

    messages: int
    missed: int
    dropped_partitions: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A moment of a queue or a group: messages per second since the one before, and what was left to do."""

    at: datetime
    rate: float | None
    lag: int
    leased: int
    dead: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue (group "", `lag` is what it keeps) or a group on it stands; `rate` is None if nobody knows yet."""

    at: datetime
    queue: str
    group: str
    status: Status | None
    rate: float | None
    lag: int
    leased: int
    dead_letters: int
    oldest_seconds: float
    trend: list[int] | None


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many dead letters have the same error."""

    queue: str
    group: str
    error: str
    letters: int
    first_failed_at: datetime
    last_failed_at: datetime


@dataclass(frozen=True, slots=True)
class Redriven:
    """A dead letter that was pushed again as a message; or would be, if that is None."""

    id: int
    queue: str
    partition: str
    group: str
    message_id: UUID | None


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


@dataclass(frozen=True, slots=True)
class DeadLetterAudit:
    """What became of a dead letter. `message_id` and `to_queue` are those of the message it was pushed again as."""

    id: int
    action: Literal["redriven", "purged"]
    dead_letter_id: int
    group: str
    queue: str
    partition: str
    offset: int
    error: str
    message_id: UUID | None
    to_queue: str | None
    done_by: str
    done_at: datetime


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """Whether the servers hold pushes or pause pops; how many messages wait, and how many requests were refused."""

    push: bool
    pop: bool
    held: int
    refused: int
    is_pending: bool


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How many open transactions have written to the outbox, how long the oldest has been open, what is left behind.

    `waiting` are rows that were committed and are not published yet, counted up to 10,000: of transactions under
    REPEATABLE READ or SERIALIZABLE, which upkeep publishes, or of ones while triggers were off.
    """

    transactions: int
    oldest_seconds: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class Drained:
    """How many messages were stored, in which queues, and how many the database refused, or requests with them."""

    messages: int
    refused: int
    queues: list[str]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key of the server, without its secret: `hash` is the SHA-256 of that."""

    id: str
    name: str
    hash: bytes = field(repr=False)
    role: str | None
    grants: dict[str, list[str]] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
