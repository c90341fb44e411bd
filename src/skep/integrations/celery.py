"""Celery: each queue of Celery is a queue of Skep with the same name, and each task is a message.

app = Celery(broker=broker("postgresql://user:password@host/dbname"))

Each fetched task has its own lease, which a thread extends until Celery acknowledges the task:

fetched ── acknowledged                     completed
        ├─ rejected                         moved to the dead letters
        ├─ released (warm shutdown)         delivered again at once
        └─ the worker dies                  delivered again when the lease expires, after `visibility_timeout` seconds
"""
# pyright: basic, reportPrivateUsage=false
# kombu has no types, and a virtual transport must override methods that begin with an underscore

import logging
import os
import threading
from contextlib import suppress
from functools import cached_property
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

import skep
from skep.client import Skep
from skep.client.sync.batch import Batch
from skep.client.sync.runtime import Event
from skep.client.sync.wake import Waiter
from skep.errors import SkepError, StaleLease, TransientError
from skep.message import QUEUE_MODE

log = logging.getLogger("skep")

# For queues that Celery creates: many leases in one partition, because tasks have no order; completed tasks are deleted
# soon; and a task is dead-lettered after as many dead workers as RabbitMQ allows.
OPTIONS: dict[str, Any] = {"concurrency": 10_000, "completed_retention_seconds": 3600, "retry_limit": 20}
# The longest pause, in seconds, while tasks are leased: Celery acknowledges between two calls of `drain_events`.
BUSY = 0.1  # while it may fetch more tasks, which costs a call to the database
FULL = 0.01  # while it may not, which costs nothing


def broker(database_url: str) -> str:
    """Return the broker URL of a database for Celery: `skep+postgresql://…`."""
    return f"skep+{database_url}"


class Leases:
    """The leases of the unacknowledged tasks of a connection, by delivery tag."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process = os.getpid()
        self._batches: dict[str, Batch] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, which closes connections that still belong to its parent."""
        return self._process != os.getpid()

    def add(self, batch: Batch) -> None:
        self._batches[str(batch.lease)] = batch
        if self._thread is None:
            self._thread = threading.Thread(target=self._extend_all, name="skep leases", daemon=True)
            self._thread.start()

    def ack(self, tag: str) -> None:
        if batch := self._batches.pop(tag, None):
            try:
                batch.ack()
            except StaleLease:
                log.warning("too late: the lease of %r has ended, and its task is delivered again", batch)

    def reject(self, tag: str) -> None:
        if batch := self._batches.pop(tag, None):
            with suppress(StaleLease):
                batch.dead_letter(None, "rejected by Celery")

    def release(self, tag: str) -> None:
        """Release a task. If the database is not available, its lease expires by itself."""
        if (batch := self._batches.pop(tag, None)) and not self.is_inherited:
            try:
                batch.release()
            except SkepError as error:
                log.info("could not release %r, it is delivered again when its lease expires: %s", batch, error)

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _extend_all(self) -> None:
        while not self._closed.wait(self.seconds / 3):
            for tag, batch in list(self._batches.items()):
                self._extend(tag, batch)

    def _extend(self, tag: str, batch: Batch) -> None:
        try:
            batch.extend(self.seconds)
        except StaleLease:
            if self._batches.pop(tag, None):  # not acknowledged a moment ago
                log.warning("the lease of %r has ended: its task is delivered again", batch)
        except SkepError as error:
            log.warning("could not extend the lease of %r: %s", batch, error)


class QoS(virtual.QoS):
    """Stores the acks of Celery at once."""

    channel: "Channel"

    def ack(self, delivery_tag: str) -> None:
        self.channel.leases.ack(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        leases = self.channel.leases
        (leases.release if requeue else leases.reject)(delivery_tag)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    """A channel of Celery, with queues of Skep."""

    QoS = QoS

    def __init__(self, connection: "Transport", **options: Any) -> None:  # noqa: ANN401
        super().__init__(connection, **options)
        self.mq = connection.mq
        self.leases = connection.leases
        self._without_ack: set[str] = set()

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **options: Any) -> None:  # noqa: A002, ANN401
        if type == "fanout":
            raise NotImplementedError(
                f'exchange "{exchange}": Skep does not support fanout exchanges, and so no remote control of workers '
                "(celery inspect, celery control). For fan-out, use consumer groups of Skep."
            )
        super().exchange_declare(exchange, type, **options)

    def basic_consume(self, queue: str, no_ack: bool, *arguments: Any, **options: Any) -> None:  # noqa: ANN401, FBT001
        (self._without_ack.add if no_ack else self._without_ack.discard)(queue)
        super().basic_consume(queue, no_ack, *arguments, **options)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:  # noqa: ANN401, FBT001, FBT002
        message: Any = super().basic_get(queue, no_ack, **options)
        if message and no_ack:
            self.leases.ack(message.delivery_tag)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        batch = self.mq.queue(queue).pop(lease_time=self.leases.seconds)
        if not batch:
            raise Empty
        raw = batch[0].payload
        try:
            raw["properties"]["delivery_tag"] = str(batch.lease)
            raw["properties"]["delivery_info"]["redelivered"] = batch[0].attempt > 1
            self.Message(raw, channel=self)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            batch.dead_letter(None, f"not a task of Celery: {error!r}")
            raise Empty from None
        self.leases.add(batch)
        return raw

    def _get_and_deliver(self, queue: str, callback: Any) -> None:  # noqa: ANN401
        message = self._get(queue)
        if queue in self._without_ack:
            self.leases.ack(message["properties"]["delivery_tag"])
        callback(message, queue)

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        self.mq.queue(queue).push(message)

    def _restore(self, message: Any) -> None:  # noqa: ANN401
        self.leases.release(message.delivery_tag)

    def _new_queue(self, queue: str, **_: object) -> None:
        """Create a queue. An existing one keeps its options: one with `concurrency` 1 runs one task at a time."""
        if not self._has_queue(queue):
            self.mq.queue(queue).configure(**OPTIONS)
            self.mq.subscribe(QUEUE_MODE, queue)

    def _has_queue(self, queue: str, **_: object) -> bool:
        return bool(self.mq.queues(queue))

    def _size(self, queue: str) -> int:
        return sum(partition.lag for partition in self.mq.lag(QUEUE_MODE, queue))

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        self.mq.seek(QUEUE_MODE, queue, "end")
        return size

    def _delete(self, queue: str, *_: object, **__: object) -> None:
        self.mq.delete_queue(queue)


class Transport(virtual.Transport):
    """A connection of Celery: a client of Skep and its leases."""

    Channel = Channel
    channels: list[Channel]
    cycle: Any
    can_parse_url = True
    driver_type = "postgresql"
    driver_name = "skep"
    connection_errors = (*virtual.Transport.connection_errors, TransientError)

    def __init__(self, client: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(client, **options)
        self.mq = Skep(client.hostname, pool_size=4)
        self.leases = Leases(float(client.transport_options.get("visibility_timeout", 60)))

    @cached_property
    def _woken(self) -> Event:
        """An event that every push sets. Only consumers use it, because it needs a LISTEN."""
        waiter = Waiter(None)
        self.mq._wakeups.add(waiter)  # noqa: SLF001
        return waiter.woken

    def driver_version(self) -> str:
        return skep.__version__

    def establish_connection(self) -> Any:  # noqa: ANN401
        self.mq.ping()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:  # noqa: ANN401
        if self.leases.is_inherited:
            return
        super().close_connection(connection)
        self.leases.close()
        self.mq.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ANN401, ARG002
        """Deliver one message. With leased tasks it returns early, because Celery acknowledges between two calls."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            self._woken.clear()
            with suppress(Empty):
                self.cycle.get(self._deliver, timeout=timeout)
                return
            woken = self._woken.wait(self._pause(deadline))
            if deadline is not None and (monotonic() >= deadline or (self.leases and not woken)):
                raise TimeoutError

    def _pause(self, deadline: float | None) -> float:
        pause = self.polling_interval if deadline is None else min(self.polling_interval, deadline - monotonic())
        if not self.leases:
            return max(pause, 0)
        fetches = any(channel.qos.can_consume() for channel in self.channels if channel._consumers)  # noqa: SLF001
        return min(max(pause, 0), BUSY if fetches else FULL)


TRANSPORT_ALIASES["skep"] = f"{__name__}:Transport"
