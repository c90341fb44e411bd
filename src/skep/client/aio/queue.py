"""One queue: what is pushed to it and popped from it."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from skep.client.aio.batch import AsyncBatch
from skep.client.aio.buffer import AsyncBuffer
from skep.errors import NotFound
from skep.message import DEFAULT_PARTITION, QUEUE_MODE, Lag, Lane, NewMessage, QueueStatus, Receipt, SeekResult
from skep.schedule import DelayedMessage

if TYPE_CHECKING:
    from skep.client.aio.skep import AsyncSkep


class AsyncQueue:
    """A queue by its name; it is made by its first message."""

    def __init__(self, mq: "AsyncSkep", name: str) -> None:
        self._mq = mq
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @overload
    async def push(
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
    async def push(
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
    async def push(
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
        """Store a message and say where.

        With `connection` (psycopg, SQLAlchemy, Django) it is published when that connection's transaction commits, and
        never if it rolls back. A message whose `transaction_id` is in the partition already is not stored again. With a
        `delay` (seconds or timedelta) or a `deliver_at` it is stored apart and delivered then; see docs/delayed.md.
        """
        message = NewMessage(payload, partition, transaction_id, headers, trace_id, delay, deliver_at)
        if connection is not None:
            return await self._mq.publish(connection, [(self.name, message)])
        return (await self._mq.push_many([(self.name, message)]))[0]

    @overload
    async def push_many(self, messages: Iterable[object], *, connection: None = None) -> list[Receipt]: ...
    @overload
    async def push_many(self, messages: Iterable[object], *, connection: object) -> None: ...
    async def push_many(self, messages: Iterable[object], *, connection: object = None) -> list[Receipt] | None:
        """Store many messages in one call, all or none: payloads, or `NewMessage` for those with more to say."""
        items = [(self.name, message) for message in messages]
        if connection is not None:
            return await self._mq.publish(connection, items)
        return await self._mq.push_many(items)

    def buffer(self, *, size: int = 500, delay: float = 0.05, limit: int = 10_000) -> AsyncBuffer:
        """Return a buffer that accepts messages at once and stores them together in the background."""
        return self._mq.make_buffer(self.name, size=size, delay=delay, limit=limit)

    async def pop(
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
    ) -> AsyncBatch:
        """Lease up to `batch` messages from up to `partitions` lanes, waiting up to `wait` seconds for the first."""
        return await self._mq.pop(
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

    async def consume(
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
    ) -> AsyncGenerator[AsyncBatch]:
        """Iterate over batches, for ever or until nothing has come for `idle_timeout` seconds.

        Going on to the next batch acknowledges what the last one has not answered. Leaving the loop gives it back,
        uncharged; `with batch:` makes an exception a failure. Leases are extended while the loop works.
        """
        stream = self._mq.make_stream(
            self.name,
            group=group,
            batch=batch,
            partition=partition,
            lease_time=lease_time,
            fetch_ahead=fetch_ahead,
            idle_timeout=idle_timeout,
            subscription_mode=subscription_mode,
            subscription_from=subscription_from,
        )
        async with stream:
            async for leased in stream:  # `yield from` has no async twin
                yield leased

    async def configure(self, *, namespace: str | None = None, task: str | None = None, **options: Any) -> None:
        """Create the queue, or change the options that are given (see docs/sql.md); the others stay."""
        await self._mq.configure_queue(self.name, options, namespace=namespace, task=task)

    async def status(self) -> QueueStatus:
        """Return its size and options."""
        found = await self._mq.queues(self.name)
        if not found:
            raise NotFound(f'there is no queue "{self.name}"', hint="The first push makes it, or configure().")
        return found[0]

    async def lanes(self, *, limit: int | None = None) -> list[Lane]:
        """Return its partitions with their sizes, by name; the first `limit` of them, or all."""
        return await self._mq.lanes(self.name, limit=limit)

    async def lag(self, group: str, partition: str | None = None) -> list[Lag]:
        """Return what a group has still to do, for each partition."""
        return await self._mq.lag(group, self.name, partition)

    async def seek(self, group: str, position: datetime | int | str, *, partition: str | None = None) -> SeekResult:
        """Move a group to "beginning", "end", a time or an offset."""
        return await self._mq.seek(group, self.name, position, partition=partition)

    async def delayed(self, partition: str | None = None, *, limit: int = 100) -> list[DelayedMessage]:
        """Return delayed messages that wait, the next one first."""
        return await self._mq.list_delayed(self.name, partition, limit=limit)

    async def delete(self) -> bool:
        """Delete the queue with everything in it but its dead letters. False if there was none."""
        return await self._mq.delete_queue(self.name)

    async def delete_partition(self, partition: str) -> bool:
        return await self._mq.delete_partition(self.name, partition)
