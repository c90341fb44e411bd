# Generated from src/skep/client/aio/skep.py by `make format`. Change that file.
"""The client. One object per database serves a whole process."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from skep.client import calls
from skep.client.encode import as_object, dumps
from skep.client.plan import Backoff, Plan
from skep.client.sync import runtime
from skep.client.sync.api_keys import ApiKeyCalls
from skep.client.sync.batch import Batch
from skep.client.sync.consumer import Consumer
from skep.client.sync.database import Database
from skep.client.sync.dead_letters import DeadLetterCalls
from skep.client.sync.foreign_connection import execute_in
from skep.client.sync.groups import GroupCalls
from skep.client.sync.queue import Queue, Resources
from skep.client.sync.schedules import ScheduleCalls
from skep.client.sync.transaction import Transaction
from skep.client.sync.upkeep import UpkeepCalls
from skep.client.sync.wake import Waiter, Wakeups
from skep.errors import InvalidArgument
from skep.message import QUEUE_MODE, Message, Partition, QueueStatus, Receipt, StoredMessage
from skep.schedule import DelayedMessage
from skep.scope import Scope


class Skep(GroupCalls, DeadLetterCalls, ScheduleCalls, UpkeepCalls, ApiKeyCalls):
    """A client of Skep. Without `database_url` or SKEP_DATABASE_URL it starts an embedded PostgreSQL with Skep in it.

    It connects at the first call. `timeout` is how long a call waits for a connection while the database is down or all
    `pool_size` connections are in use. `poll_interval` is how often an idle consumer polls when no push wakes it.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        data_dir: Path | None = None,
        pool_size: int = 10,
        timeout: float = 30,
        poll_interval: float = 1,
        producer: str | None = None,
    ) -> None:
        self._database = Database(database_url, data_dir=data_dir, pool_size=pool_size, timeout=timeout)
        self._wakeups = Wakeups(self._database)
        if poll_interval <= 0:
            raise InvalidArgument(f"poll_interval must be greater than 0 seconds, got {poll_interval}")
        self._poll_interval = poll_interval
        self._producer = producer
        self._consumers: list[Consumer] = []
        self._resources = Resources(self._database, self._wakeups, poll_interval, producer)

    def __enter__(self) -> Self:
        self._database.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the consumers, end the loops, store the messages of buffers and close the connections."""
        self.stop()
        for stream in tuple(self._resources.streams):
            stream.close()
        try:
            self._close_buffers()
        finally:
            self._wakeups.close()
            self._database.close()

    def _close_buffers(self) -> None:
        """Close all buffers, even if closing one of them raises an error."""
        buffers = self._resources.buffers
        try:
            while buffers:
                buffers.pop().close()
        finally:
            if buffers:
                self._close_buffers()

    def ping(self) -> None:
        """Raise an error if the database is not available."""
        self._database.value(calls.PING, {})

    def queue(self, name: str) -> Queue:
        return Queue(self, name, self._resources)

    def push_many(self, messages: Iterable[tuple[str, object]]) -> list[Receipt]:
        """Store messages in any queues in one call, all or none. Each is a queue name and a payload or `NewMessage`."""
        items = [as_object(queue, message, self._producer) for queue, message in messages]
        if not items:
            return []
        receipts = self._database.call(calls.PUSH, {"messages": dumps(items)}, Receipt)
        self._wakeups.pushed({item["queue"] for item in items})
        return receipts

    def publish(self, connection: object, messages: Iterable[tuple[str, object]]) -> None:
        """Publish messages when the transaction of this connection commits (transactional outbox)."""
        items = [as_object(queue, message, self._producer) for queue, message in messages]
        execute_in(connection, calls.OUTBOX, {"messages": dumps(items)})

    def transaction(self) -> Transaction:
        """Return a context manager that does its pushes and acks in one transaction at its end."""
        return Transaction(self._database, self._wakeups, self._producer)

    def pop(
        self,
        queue: str | None = None,
        *,
        group: str = QUEUE_MODE,
        batch: int = 1,
        wait: float = 0,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        partitions: int = 1,
        lease_time: float | None = None,
        auto_ack: bool = False,
        subscription_mode: str | None = None,
        subscription_from: str | None = None,
    ) -> Batch:
        """Lease messages of one queue, or of every queue of a namespace and/or task; see `Queue.pop`."""
        scope = Scope(queue, group, partition, namespace, task, subscription_mode, subscription_from)
        arguments = scope.arguments(batch=batch, partitions=partitions, lease_time=lease_time, auto_ack=auto_ack)
        if wait <= 0:
            messages = self._pop_once(arguments)
        else:
            messages = self._pop_waiting(queue, arguments, monotonic() + wait)
        return Batch(self._database, messages, acked=auto_ack)

    def _pop_once(self, arguments: Mapping[str, Any]) -> list[Message]:
        return runtime.complete_or_undo(self._database.call(calls.POP, arguments, Message), self._release)

    def _release(self, messages: list[Message]) -> None:
        if messages:
            Batch(self._database, messages).release()

    def _pop_waiting(self, queue: str | None, arguments: Mapping[str, Any], deadline: float) -> list[Message]:
        waiter = Waiter(queue)
        backoff = Backoff(self._poll_interval)
        self._wakeups.add(waiter)
        try:
            while True:
                waiter.woken.clear()
                messages = self._pop_once(arguments)
                left = deadline - monotonic()
                if messages or left <= 0:
                    return messages
                waiter.woken.wait(backoff.pause(left))
        finally:
            self._wakeups.remove(waiter)

    def consumer(
        self,
        queue: str | None = None,
        *,
        group: str = QUEUE_MODE,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        batch: int = 10,
        per: Literal["message", "batch"] = "message",
        concurrency: int = 1,
        fetch_ahead: int = 1,
        lease_time: float = 30,
        subscription_mode: str | None = None,
        subscription_from: str | None = None,
    ) -> Callable[[Callable[[Any], Any]], Consumer]:
        """Decorate a handler, which is called with each message or each batch, up to `concurrency` at once.

        Start it with `run()` of the returned consumer or of the client. Leases are extended while handlers work.
        """
        if per not in ("message", "batch"):
            raise InvalidArgument(f'per must be "message" or "batch", got "{per}"')
        scope = Scope(queue, group, partition, namespace, task, subscription_mode, subscription_from)
        plan = Plan(concurrency, fetch_ahead, lease_time, self._poll_interval)

        def decorate(handler: Callable[[Any], Any]) -> Consumer:
            made = Consumer(
                self._database,
                self._wakeups,
                scope,
                plan,
                handler=handler,
                batch=batch,
                per_message=per == "message",
            )
            self._consumers.append(made)
            return made

        return decorate

    def run(self) -> None:
        """Run all consumers of this client until `stop()`, or until one of them raises an error."""
        runtime.gather([consumer.run for consumer in self._consumers], self.stop)

    def stop(self) -> None:
        """Stop all consumers. Return when started handlers have finished and their acks are stored."""
        for consumer in self._consumers:
            consumer.begin_stop()  # all of them, before waiting for one
        for consumer in self._consumers:
            consumer.stop()

    def trace(
        self,
        message: Message,
        data: Mapping[str, Any],
        *,
        group: str = QUEUE_MODE,
        event: str = "info",
        names: Iterable[str] = (),
    ) -> bool:
        """Record a trace of a message. Traces with the same name belong together. Return False if it does not exist."""
        arguments = {"id": message.id, "group": group, "event": event, "names": list(names), "worker": self._producer}
        return self._database.value(calls.TRACE, {**arguments, "data": dumps([data])[1:-1]}) is not None

    def queues(self, name: str | None = None) -> list[QueueStatus]:
        return self._database.call(calls.QUEUES, {"queue": name}, QueueStatus)

    def partitions(self, queue: str, *, limit: int | None = None) -> list[Partition]:
        """Return the partitions of a queue with their sizes, sorted by name: the first `limit`, or all."""
        return self._database.call(calls.PARTITIONS, {"queue": queue, "limit": limit}, Partition)

    def configure_queue(
        self, name: str, options: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> None:
        arguments = {"queue": name, "options": dumps([options])[1:-1], "namespace": namespace, "task": task}
        self._database.value(calls.CONFIGURE_QUEUE, arguments)

    def delete_queue(self, name: str) -> bool:
        return self._database.value(calls.DELETE_QUEUE, {"queue": name})

    def delete_partition(self, queue: str, partition: str) -> bool:
        return self._database.value(calls.DELETE_PARTITION, {"queue": queue, "partition": partition})

    def clear_queue(self, queue: str, partition: str | None = None) -> int:
        """Delete all messages currently in a queue or a partition. Return how many."""
        return self._database.value(calls.CLEAR_QUEUE, {"queue": queue, "partition": partition})

    def peek(
        self, queue: str, partition: str | None = None, first_offset: int = 0, limit: int = 100
    ) -> list[StoredMessage]:
        """Return stored messages, consumed or not, without leasing them."""
        where = {"queue": queue, "partition": partition, "first_offset": first_offset}
        return self._database.call(calls.PEEK, {**where, "limit": limit}, StoredMessage)

    def find(self, message_id: UUID) -> StoredMessage | None:
        found = self._database.call(calls.FIND, {"id": message_id}, StoredMessage)
        return found[0] if found else None

    def delete_message(self, message_id: UUID) -> bool:
        """Delete the content of a message; its offset stays. Return False if it does not exist."""
        return self._database.value(calls.DELETE_MESSAGE, {"id": message_id})

    def list_delayed(
        self, queue: str | None = None, partition: str | None = None, *, limit: int = 100
    ) -> list[DelayedMessage]:
        """Return the delayed messages of one queue or of all, the next one first."""
        arguments = {"queue": queue, "partition": partition, "limit": limit}
        return self._database.call(calls.LIST_DELAYED, arguments, DelayedMessage)

    def cancel_delayed(self, message_id: UUID) -> bool:
        """Delete a delayed message by the id of its receipt. Return False if it is no longer waiting."""
        return self._database.value(calls.CANCEL_DELAYED, {"id": message_id})

    def _wake_consumers(self, queues: set[str]) -> None:
        self._wakeups.pushed(queues)
