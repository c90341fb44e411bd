"""The values of the API: messages, receipts, and the status of queues, groups and dead letters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

QUEUE_MODE = "__QUEUE_MODE__"  # the group of consumers that name none; they share the messages of a queue
DEFAULT_PARTITION = "Default"

Status = Literal["ACTIVE", "PAUSED", "CANCELLED", "DEAD"]


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to push. `payload` is any JSON value."""

    payload: Any
    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    headers: Mapping[str, Any] | None = None
    trace_id: UUID | str | None = None
    delay: float | timedelta | None = None
    deliver_at: datetime | None = None


class Receipt(NamedTuple):  # pushes create hundreds: 0.4 µs each, a frozen dataclass takes 2.3 µs
    """Where a pushed message is stored. A `duplicate` was not stored, because its transaction id already existed."""

    status: Literal["queued", "duplicate", "delayed"]
    id: UUID
    partition_id: int
    offset: int | None
    created_at: datetime
    due_at: datetime | None = None  # of a delayed message, which has no offset yet; `cancel_delayed` takes its id


class Message(NamedTuple):
    """A delivered message. The fields are those of the SQL type `skep.delivery`, in the same order."""

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
    """A stored message. A `deleted` one has no content any more, but keeps its offset."""

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
class Partition:
    """A partition of a queue, and the number of its messages."""

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
    """The cursor and the lag of a group in a partition."""

    queue: str
    partition: str
    cursor: int
    last_offset: int
    lag: int
    leased: int
    last_consumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class SeekResult:
    """The number of moved partitions, of skipped messages, and of completed messages that are delivered again."""

    partitions: int
    skipped: int
    again: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of a group. A name that is None matches any."""

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
    retry_limit: int | None  # in these four, None means the option of the queue
    retry_delay: float | None
    max_retry_delay: float | None
    retry_jitter: float | None


@dataclass(frozen=True, slots=True)
class Defaults:
    """The mode of new groups that name none, and the longest poll interval: mode `new` starts twice as far back."""

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
    """The status and the progress of a group on a queue."""

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
    missed_heartbeats: int
    oldest_pending_at: datetime | None


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """A group with a backlog in a partition. If `is_floor`, its cursor is the lowest, so retention waits for it."""

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
    """A group of a message, and how far it is with it."""

    group: str
    status: Status
    required: bool
    completed: bool
    state: Literal["completed", "leased", "waiting", "pending", "released"]


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """The progress of a message: its groups, the completed and the pending ones."""

    offset: int
    id: UUID
    created_at: datetime
    required_consumer_groups: int
    completed_consumer_groups: int
    pending_groups: list[str]


@dataclass(frozen=True, slots=True)
class SilentGroup:
    """A group whose heartbeat is overdue, and whether it was declared dead."""

    group: str
    queue: str | None
    namespace: str | None
    task: str | None
    last_heartbeat_at: datetime
    overdue_seconds: float
    missed_heartbeats: int
    died: bool

    @property
    def scope(self) -> str:
        return self.queue or f"{self.namespace or '*'}.{self.task or '*'}"


@dataclass(frozen=True, slots=True)
class RetentionDeletion:
    """A run [first_offset, end_offset) that retention deletes, and how many of its messages some group missed."""

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
class RetentionResult:
    """The number of deleted messages, of those that some group missed, and of dropped idle partitions."""

    messages: int
    missed: int
    dropped_partitions: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a queue or a group: messages per second since the previous sample, and the lag."""

    at: datetime
    rate: float | None
    lag: int
    leased: int
    dead: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class CurrentProgress:
    """The progress of a group, or of a queue (group ""; `lag` is its size). `rate` is None before the second sample."""

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
    """The number of dead letters with the same error."""

    queue: str
    group: str
    error: str
    letters: int
    first_failed_at: datetime
    last_failed_at: datetime


@dataclass(frozen=True, slots=True)
class Redriven:
    """A redriven dead letter and its new message. In a dry run `message_id` is None."""

    id: int
    queue: str
    partition: str
    group: str
    message_id: UUID | None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A full copy of a message that a group failed for good."""

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
    """An audit entry of a dead letter. `message_id` and `to_queue` identify the new message of a redrive."""

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
    """Whether the servers hold pushes or pause pops, and the number of held messages and of refused requests."""

    push: bool
    pop: bool
    held: int
    refused: int
    is_pending: bool


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """The number of open transactions with outbox rows, the age of the oldest, and the number of unpublished rows.

    `waiting` counts committed rows that are not published yet, up to 10,000. They are from transactions under
    REPEATABLE READ or SERIALIZABLE, which upkeep publishes, or from transactions that ran with triggers disabled.
    """

    transactions: int
    oldest_seconds: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class StoreResult:
    """The number of stored messages, the number of refused messages or requests, and the queues."""

    messages: int
    refused: int
    queues: list[str]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key of the server. `hash` is the SHA-256 of its secret."""

    id: str
    name: str
    hash: bytes = field(repr=False)
    role: str | None
    grants: dict[str, list[str]] | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
