"""The client: one object for a database, shared by everything in a process."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID
from weakref import WeakSet

from skep.client import calls
from skep.client.aio import runtime
from skep.client.aio.api_keys import AsyncApiKeys
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.buffer import AsyncBuffer
from skep.client.aio.consumer import AsyncConsumer
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.dead_letters import AsyncDeadLetters
from skep.client.aio.groups import AsyncGroups
from skep.client.aio.guest import execute_in
from skep.client.aio.maintenance import AsyncMaintenance
from skep.client.aio.queue import AsyncQueue
from skep.client.aio.schedules import AsyncSchedules
from skep.client.aio.stream import AsyncStream
from skep.client.aio.transaction import AsyncTransaction
from skep.client.aio.wake import AsyncWaiter, AsyncWakes
from skep.client.encode import as_object, dumps
from skep.client.plan import Pacing, Plan
from skep.errors import InvalidArgument
from skep.message import QUEUE_MODE, Lane, Message, QueueStatus, Receipt, StoredMessage
from skep.schedule import DelayedMessage
from skep.scope import Scope


class AsyncSkep(AsyncGroups, AsyncDeadLetters, AsyncSchedules, AsyncMaintenance, AsyncApiKeys):
    """A client of Skep. Without a URL, here or in SKEP_DATABASE_URL, it uses the embedded PostgreSQL with Skep in it.

    It connects at the first call. `timeout` is how long a call waits for a connection while the database is down or all
    `pool_size` connections are in use; `poll_interval` is how often an idle consumer looks when nothing wakes it.
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
        self._database = AsyncDatabase(database_url, data_dir=data_dir, pool_size=pool_size, timeout=timeout)
        self._wakes = AsyncWakes(self._database)
        if poll_interval <= 0:
            raise InvalidArgument("poll_interval is seconds above 0")
        self._poll_interval = poll_interval
        self._producer = producer
        self._consumers: list[AsyncConsumer] = []
        self._streams: WeakSet[AsyncStream] = WeakSet()
        self._buffers: WeakSet[AsyncBuffer] = WeakSet()

    async def __aenter__(self) -> Self:
        await self._database.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the consumers, end the loops, store what buffers hold and let go of the database."""
        await self.stop()
        for stream in tuple(self._streams):
            await stream.close()
        try:
            await self._close_buffers()
        finally:
            await self._wakes.close()
            await self._database.close()

    async def _close_buffers(self) -> None:
        """Close all, whatever one of them has to say."""
        try:
            while self._buffers:
                await self._buffers.pop().close()
        finally:
            if self._buffers:
                await self._close_buffers()

    async def ping(self) -> None:
        """Raise unless the database answers."""
        await self._database.value(calls.PING, {})

    def queue(self, name: str) -> AsyncQueue:
        return AsyncQueue(self, name)

    async def push_many(self, messages: Iterable[tuple[str, object]]) -> list[Receipt]:
        """Store messages of any queues in one call, all or none: pairs of queue name and payload or `NewMessage`."""
        items = [as_object(queue, message, self._producer) for queue, message in messages]
        if not items:
            return []
        receipts = await self._database.call(calls.PUSH, {"messages": dumps(items)}, Receipt)
        self._wakes.pushed({item["queue"] for item in items})
        return receipts

    async def publish(self, connection: object, messages: Iterable[tuple[str, object]]) -> None:
        """Store messages when the transaction of this connection commits, and never if it rolls back: the outbox."""
        items = [as_object(queue, message, self._producer) for queue, message in messages]
        await execute_in(connection, calls.OUTBOX, {"messages": dumps(items)})

    def transaction(self) -> AsyncTransaction:
        """Collect pushes and answers in a block, to be done as one at its end."""
        return AsyncTransaction(self._database, self._wakes, self._producer)

    def make_buffer(self, queue: str, *, size: int, delay: float, limit: int) -> AsyncBuffer:
        made = AsyncBuffer(self._database, self._wakes, queue, self._producer, size=size, delay=delay, limit=limit)
        self._buffers.add(made)
        return made

    async def pop(
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
    ) -> AsyncBatch:
        """Lease messages of one queue, or of every queue of a namespace and/or task; see `AsyncQueue.pop`."""
        scope = Scope(queue, group, partition, namespace, task, subscription_mode, subscription_from)
        arguments = scope.arguments(batch=batch, partitions=partitions, lease_time=lease_time, auto_ack=auto_ack)
        if wait <= 0:
            messages = await self._pop_once(arguments)
        else:
            messages = await self._pop_waiting(queue, arguments, monotonic() + wait)
        return AsyncBatch(self._database, messages, answered=auto_ack)

    async def _pop_once(self, arguments: Mapping[str, Any]) -> list[Message]:
        return await runtime.to_the_end(self._database.call(calls.POP, arguments, Message), self._release)

    async def _release(self, messages: list[Message]) -> None:
        if messages:
            await AsyncBatch(self._database, messages).release()

    async def _pop_waiting(self, queue: str | None, arguments: Mapping[str, Any], deadline: float) -> list[Message]:
        waiter = AsyncWaiter(queue)
        pacing = Pacing(self._poll_interval)
        self._wakes.add(waiter)
        try:
            while True:
                waiter.woken.clear()
                messages = await self._pop_once(arguments)
                left = deadline - monotonic()
                if messages or left <= 0:
                    return messages
                await waiter.woken.wait(pacing.pause(left))
        finally:
            self._wakes.remove(waiter)

    def make_waiter(self, queue: str | None = None) -> AsyncWaiter:
        """Return somebody who is woken by every push to a queue, or to any, until the client is closed."""
        waiter = AsyncWaiter(queue)
        self._wakes.add(waiter)
        return waiter

    def make_stream(
        self,
        queue: str,
        *,
        group: str,
        batch: int,
        partition: str | None,
        lease_time: float,
        fetch_ahead: int,
        idle_timeout: float | None,
        subscription_mode: str | None,
        subscription_from: str | None,
    ) -> AsyncStream:
        scope = Scope(queue, group, partition, None, None, subscription_mode, subscription_from)
        plan = Plan(1, fetch_ahead, lease_time, self._poll_interval, idle_timeout)
        stream = AsyncStream(self._database, self._wakes, scope, plan, batch=batch)
        self._streams.add(stream)
        return stream

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
    ) -> Callable[[Callable[[Any], Any]], AsyncConsumer]:
        """Decorate a handler: called with each message, or with each batch, `concurrency` at once.

        `run()` of what it returns, or of the client, starts it. Leases are extended while handlers work.
        """
        if per not in ("message", "batch"):
            raise InvalidArgument(f'a handler cannot be called per "{per}"', hint='Per "message", or per "batch".')
        scope = Scope(queue, group, partition, namespace, task, subscription_mode, subscription_from)
        plan = Plan(concurrency, fetch_ahead, lease_time, self._poll_interval)

        def decorate(handler: Callable[[Any], Any]) -> AsyncConsumer:
            made = AsyncConsumer(
                self._database,
                self._wakes,
                scope,
                plan,
                handler=handler,
                batch=batch,
                per_message=per == "message",
            )
            self._consumers.append(made)
            return made

        return decorate

    async def run(self) -> None:
        """Run every consumer of this client until `stop()`, or until one of them cannot go on."""
        await runtime.gather([consumer.run for consumer in self._consumers], self.stop)

    async def stop(self) -> None:
        """Stop every consumer; returns when what they had begun is finished and stored."""
        for consumer in self._consumers:
            consumer.lease_no_more()  # all of them, before one is waited for
        for consumer in self._consumers:
            await consumer.stop()

    async def trace(
        self,
        message: Message,
        data: Mapping[str, Any],
        *,
        group: str = QUEUE_MODE,
        event: str = "info",
        names: Iterable[str] = (),
    ) -> bool:
        """Note something about a message one works on; names tie notes on many messages together. False: it is gone."""
        arguments = {"id": message.id, "group": group, "event": event, "names": list(names), "worker": self._producer}
        return await self._database.value(calls.TRACE, {**arguments, "data": dumps([data])[1:-1]}) is not None

    async def queues(self, name: str | None = None) -> list[QueueStatus]:
        return await self._database.call(calls.QUEUES, {"queue": name}, QueueStatus)

    async def lanes(self, queue: str, *, limit: int | None = None) -> list[Lane]:
        """Return the partitions of a queue with their sizes, by name; the first `limit` of them, or all."""
        return await self._database.call(calls.LANES, {"queue": queue, "limit": limit}, Lane)

    async def configure_queue(
        self, name: str, options: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> None:
        arguments = {"queue": name, "options": dumps([options])[1:-1], "namespace": namespace, "task": task}
        await self._database.value(calls.CONFIGURE_QUEUE, arguments)

    async def delete_queue(self, name: str) -> bool:
        return await self._database.value(calls.DELETE_QUEUE, {"queue": name})

    async def delete_partition(self, queue: str, partition: str) -> bool:
        return await self._database.value(calls.DELETE_PARTITION, {"queue": queue, "partition": partition})

    async def clear_queue(self, queue: str, partition: str | None = None) -> int:
        """Delete every message that is in a queue or a partition now; returns how many. Groups go on behind them."""
        return await self._database.value(calls.CLEAR_QUEUE, {"queue": queue, "partition": partition})

    async def peek(
        self, queue: str, partition: str | None = None, first_offset: int = 0, limit: int = 100
    ) -> list[StoredMessage]:
        """Return messages as they are stored, whoever has consumed them; nobody is kept from them."""
        where = {"queue": queue, "partition": partition, "first_offset": first_offset}
        return await self._database.call(calls.PEEK, {**where, "limit": limit}, StoredMessage)

    async def find(self, message_id: UUID) -> StoredMessage | None:
        found = await self._database.call(calls.FIND, {"id": message_id}, StoredMessage)
        return found[0] if found else None

    async def delete_message(self, message_id: UUID) -> bool:
        """Delete the content of a message; its offset stays. False if it was not there."""
        return await self._database.value(calls.DELETE_MESSAGE, {"id": message_id})

    async def list_delayed(
        self, queue: str | None = None, partition: str | None = None, *, limit: int = 100
    ) -> list[DelayedMessage]:
        """Return delayed messages that wait, of one queue or of all, the next one first."""
        arguments = {"queue": queue, "partition": partition, "limit": limit}
        return await self._database.call(calls.LIST_DELAYED, arguments, DelayedMessage)

    async def cancel_delayed(self, message_id: UUID) -> bool:
        """Delete a delayed message by the id of its receipt. False if it is no longer waiting."""
        return await self._database.value(calls.CANCEL_DELAYED, {"id": message_id})

    def _pushed_again(self, queues: set[str]) -> None:
        self._wakes.pushed(queues)
