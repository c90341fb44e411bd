# Generated from src/skep/client/aio/queue.py by `make format`. Change that file.
"""One queue: push, pop, consume, configure."""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID
from weakref import WeakSet

from skep.client.plan import Plan
from skep.client.sync.batch import Batch
from skep.client.sync.buffer import Buffer
from skep.client.sync.database import Database
from skep.client.sync.stream import Stream
from skep.client.sync.wake import Wakeups
from skep.errors import NotFound
from skep.message import DEFAULT_PARTITION, QUEUE_MODE, Lag, NewMessage, Partition, QueueStatus, Receipt, SeekResult
from skep.schedule import DelayedMessage
from skep.scope import Scope

if TYPE_CHECKING:
    from skep.client.sync.skep import Skep


@dataclass(slots=True)
class Resources:
    """The parts of a client that its queues share, and the streams and buffers to close with it."""

    database: Database
    wakeups: Wakeups
    poll_interval: float
    producer: str | None
    streams: WeakSet[Stream] = field(default_factory=WeakSet["Stream"])
    buffers: WeakSet[Buffer] = field(default_factory=WeakSet["Buffer"])


class Queue:
    """A queue, identified by its name. The first push creates it."""

    def __init__(self, mq: "Skep", name: str, resources: Resources) -> None:
        self._mq = mq
        self._resources = resources
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @overload
    def push(
        self,
        payload: object,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        trace_id: UUID | str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        connection: None = None,
    ) -> Receipt: ...
    @overload
    def push(
        self,
        payload: object,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        trace_id: UUID | str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        connection: object,
    ) -> None: ...
    def push(
        self,
        payload: object,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        trace_id: UUID | str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
        connection: object = None,
    ) -> Receipt | None:
        """Store a message and return its receipt.

        With `connection` (psycopg, SQLAlchemy, Django) the message is published when the transaction of that connection
        commits. `transaction_id` is the dedup key: a message whose key is already in the partition is not stored again.
        `delay` (seconds or timedelta) or `deliver_at` delivers the message later; see docs/delayed.md.
        """
        message = NewMessage(payload, partition, transaction_id, headers, trace_id, delay, deliver_at)
        if connection is not None:
            return self._mq.publish(connection, [(self.name, message)])
        return (self._mq.push_many([(self.name, message)]))[0]

    @overload
    def push_many(self, messages: Iterable[object], *, connection: None = None) -> list[Receipt]: ...
    @overload
    def push_many(self, messages: Iterable[object], *, connection: object) -> None: ...
    def push_many(self, messages: Iterable[object], *, connection: object = None) -> list[Receipt] | None:
        """Store many messages in one call, all or none. Each is a payload, or a `NewMessage` with more options."""
        items = [(self.name, message) for message in messages]
        if connection is not None:
            return self._mq.publish(connection, items)
        return self._mq.push_many(items)

    def buffer(self, *, size: int = 500, delay: float = 0.05, limit: int = 10_000) -> Buffer:
        """Return a buffer that accepts messages at once and stores them together in the background."""
        own = self._resources
        buffer = Buffer(own.database, own.wakeups, self.name, own.producer, size=size, delay=delay, limit=limit)
        own.buffers.add(buffer)
        return buffer

    def pop(
        self,
        *,
        group: str = QUEUE_MODE,
        batch: int = 1,
        wait: float = 0,
        partition: str | None = None,
        partitions: int = 1,
        lease_time: float | None = None,
        auto_ack: bool = False,
        subscription_mode: str | None = None,
        subscription_from: str | None = None,
    ) -> Batch:
        """Lease up to `batch` messages from up to `partitions` partitions; wait up to `wait` seconds for the first."""
        return self._mq.pop(
            self.name,
            group=group,
            batch=batch,
            wait=wait,
            partition=partition,
            partitions=partitions,
            lease_time=lease_time,
            auto_ack=auto_ack,
            subscription_mode=subscription_mode,
            subscription_from=subscription_from,
        )

    def consume(
        self,
        *,
        group: str = QUEUE_MODE,
        batch: int = 100,
        partition: str | None = None,
        lease_time: float = 30,
        fetch_ahead: int = 1,
        idle_timeout: float | None = None,
        subscription_mode: str | None = None,
        subscription_from: str | None = None,
    ) -> Generator[Batch]:
        """Iterate over batches, forever or until no message has arrived for `idle_timeout` seconds.

        Asking for the next batch acknowledges the remaining messages of the previous one. Leaving the loop releases
        them without counting an attempt; `with batch:` turns an exception into a failure. Leases are extended
        while the loop works.
        """
        own = self._resources
        scope = Scope(self.name, group, partition, None, None, subscription_mode, subscription_from)
        plan = Plan(1, fetch_ahead, lease_time, own.poll_interval, idle_timeout)
        stream = Stream(own.database, own.wakeups, scope, plan, batch=batch)
        own.streams.add(stream)
        with stream:
            for leased in stream:  # an generator cannot use `yield from`
                yield leased

    def configure(self, *, namespace: str | None = None, task: str | None = None, **options: Any) -> None:
        """Create the queue, or change the given options (see docs/sql.md). Other options stay."""
        self._mq.configure_queue(self.name, options, namespace=namespace, task=task)

    def status(self) -> QueueStatus:
        """Return the size and the options of the queue."""
        found = self._mq.queues(self.name)
        if not found:
            raise NotFound(f'there is no queue "{self.name}"', hint="push() or configure() creates it.")
        return found[0]

    def partitions(self, *, limit: int | None = None) -> list[Partition]:
        """Return the partitions of the queue with their sizes, sorted by name: the first `limit`, or all."""
        return self._mq.partitions(self.name, limit=limit)

    def lag(self, group: str, partition: str | None = None) -> list[Lag]:
        """Return the lag of a group in each partition."""
        return self._mq.lag(group, self.name, partition)

    def seek(self, group: str, position: datetime | int | str, *, partition: str | None = None) -> SeekResult:
        """Move a group to "beginning", "end", a time or an offset."""
        return self._mq.seek(group, self.name, position, partition=partition)

    def delayed(self, partition: str | None = None, *, limit: int = 100) -> list[DelayedMessage]:
        """Return the delayed messages of the queue, the next one first."""
        return self._mq.list_delayed(self.name, partition, limit=limit)

    def delete(self) -> bool:
        """Delete the queue and its messages; dead letters stay. Return False if it does not exist."""
        return self._mq.delete_queue(self.name)

    def delete_partition(self, partition: str) -> bool:
        return self._mq.delete_partition(self.name, partition)
