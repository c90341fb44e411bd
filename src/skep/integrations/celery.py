"""Celery: tasks are messages of the Skep queue that is named like the queue of Celery.

app = Celery(broker=broker("postgresql://user:password@host/dbname"))

Each task a worker has fetched is under a lease of its own, which a thread extends until Celery acknowledges it:

fetched ── acknowledged                     done
        ├─ rejected                         a dead letter
        ├─ given back (warm shutdown)       comes again at once
        └─ the worker is dead               comes again when the lease ends, after `visibility_timeout` seconds
"""
# pyright: basic, reportPrivateUsage=false
# kombu has no types, and its virtual transports are made by overriding what begins with an underscore

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
from skep.errors import SkepError, StaleLease, TransientError
from skep.message import QUEUE_MODE

log = logging.getLogger("skep")

# For queues that Celery makes. Many leases in one lane, for tasks have no order; nothing that is done is kept for long;
# and a task is given up when its workers died of it as often as RabbitMQ allows.
OPTIONS: dict[str, Any] = {"concurrency": 10_000, "completed_retention_seconds": 3600, "retry_limit": 20}
# Seconds until Celery, which acknowledges between two looks, can do so:
BUSY = 0.1  # while it may fetch more, for which it asks the database
FULL = 0.01  # while it may not, which costs nothing


def broker(database_url: str) -> str:
    """Return the URL by which Celery knows this database: `skep+postgresql://…`."""
    return f"skep+{database_url}"


class Leases:
    """What a connection has fetched and not answered, by delivery tag."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process = os.getpid()
        self._held: dict[str, Batch] = {}
        self._over = threading.Event()
        self._keeper: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_inherited(self) -> bool:
        """True in the child of a fork, which tidies up connections that are still its parent's."""
        return self._process != os.getpid()

    def hold(self, batch: Batch) -> None:
        self._held[str(batch.lease)] = batch
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="skep leases", daemon=True)
            self._keeper.start()

    def ack(self, tag: str) -> None:
        if batch := self._held.pop(tag, None):
            try:
                batch.ack()
            except StaleLease:
                log.warning("too late: the lease of %r is over, and its task comes again", batch)

    def reject(self, tag: str) -> None:
        if batch := self._held.pop(tag, None):
            with suppress(StaleLease):
                batch.dead_letter(None, "rejected by Celery")

    def give_back(self, tag: str) -> None:
        """Let go. A database that is away learns it by itself, when the lease ends."""
        if (batch := self._held.pop(tag, None)) and not self.is_inherited:
            try:
                batch.release()
            except SkepError as error:
                log.info("%r comes again when its lease ends: %s", batch, error)

    def close(self) -> None:
        self._over.set()
        if self._keeper is not None:
            self._keeper.join()

    def _keep(self) -> None:
        while not self._over.wait(self.seconds / 3):
            for tag, batch in list(self._held.items()):
                self._extend(tag, batch)

    def _extend(self, tag: str, batch: Batch) -> None:
        try:
            batch.extend(self.seconds)
        except StaleLease:
            if self._held.pop(tag, None):  # and not answered a moment ago
                log.warning("the lease of %r is over: its task comes again", batch)
        except SkepError as error:
            log.warning("the lease of %r could not be extended: %s", batch, error)


class QoS(virtual.QoS):
    """The answers of Celery, which are stored at once."""

    channel: "Channel"

    def ack(self, delivery_tag: str) -> None:
        self.channel.leases.ack(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        leases = self.channel.leases
        (leases.give_back if requeue else leases.reject)(delivery_tag)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    """Queues of Celery, kept by Skep."""

    QoS = QoS

    def __init__(self, connection: "Transport", **options: Any) -> None:  # noqa: ANN401
        super().__init__(connection, **options)
        self.mq = connection.mq
        self.leases = connection.leases
        self._without_ack: set[str] = set()

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **options: Any) -> None:  # noqa: A002, ANN401
        if type == "fanout":
            raise NotImplementedError(
                f'exchange "{exchange}": Skep has no fanout exchanges, so there is no remote control of workers '
                "(celery inspect, celery control) either. A group of consumers gets every message of a queue."
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
        self.leases.hold(batch)
        return raw

    def _get_and_deliver(self, queue: str, callback: Any) -> None:  # noqa: ANN401
        message = self._get(queue)
        if queue in self._without_ack:
            self.leases.ack(message["properties"]["delivery_tag"])
        callback(message, queue)

    def _put(self, queue: str, message: dict[str, Any], **_: object) -> None:
        self.mq.queue(queue).push(message)

    def _restore(self, message: Any) -> None:  # noqa: ANN401
        self.leases.give_back(message.delivery_tag)

    def _new_queue(self, queue: str, **_: object) -> None:
        """One that is there already keeps its options: who makes it with `concurrency` 1 has one task at a time."""
        if not self._has_queue(queue):
            self.mq.queue(queue).configure(**OPTIONS)
            self.mq.subscribe(QUEUE_MODE, queue)

    def _has_queue(self, queue: str, **_: object) -> bool:
        return bool(self.mq.queues(queue))

    def _size(self, queue: str) -> int:
        return sum(lane.lag for lane in self.mq.lag(QUEUE_MODE, queue))

    def _purge(self, queue: str) -> int:
        size = self._size(queue)
        self.mq.seek(QUEUE_MODE, queue, "end")
        return size

    def _delete(self, queue: str, *_: object, **__: object) -> None:
        self.mq.delete_queue(queue)


class Transport(virtual.Transport):
    """A connection of Celery: a client of Skep, and the leases it holds."""

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
        """For those who consume, and not for those who only send tasks: it needs a LISTEN."""
        return self.mq.make_waiter().woken

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
        """Deliver one message. While some are not answered, come back early: Celery acknowledges between two calls."""
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
