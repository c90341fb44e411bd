# Generated from src/skep/client/aio/consumer.py by `make format`. Change that file.
"""Consumers: they call a handler with each message, or with each batch."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

from skep.client.encode import describe
from skep.client.handling import inside_handler
from skep.client.plan import Ack, BatchAcks, Plan
from skep.client.sync import runtime
from skep.client.sync.batch import Batch
from skep.client.sync.database import Database
from skep.client.sync.driver import Driver
from skep.client.sync.wake import Wakeups
from skep.errors import SkepError
from skep.message import Message
from skep.scope import Scope

log = logging.getLogger("skep")

ACK_DELAY = 0.5  # seconds of work that may be repeated after a crash


class Consumer:
    """A handler and the scope it consumes. `run()` works until `stop()`, which lets started handlers finish.

    An exception in the handler fails its message, or the remaining messages of its batch.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups,
        scope: Scope,
        plan: Plan,
        *,
        handler: Callable[[Any], Any],
        batch: int,
        per_message: bool,
    ) -> None:
        runtime.check_handler(handler)
        self._database = database
        self._wakeups = wakeups
        self._scope = scope
        self._plan = plan
        self._batch = batch
        self._per_message = per_message
        self._driver: Driver | None = None
        self._starting = threading.Lock()
        self._ended = runtime.Event()
        self.handler = handler
        self.__name__: str = getattr(handler, "__name__", "handler")

    def __call__(self, argument: object) -> object:
        """Call the handler directly, as if it were not decorated."""
        return self.handler(argument)

    def run(self) -> None:
        """Consume until stopped. Raise errors that are not retryable, such as missing rights or a missing schema."""
        handlers = runtime.HandlerPool(self._plan.concurrency)

        def start(batch: Batch) -> None:
            handlers.submit(lambda: self._handle(driver, batch))

        plan = replace(self._plan)  # a fresh state: a consumer can run again
        driver = Driver(self._database, self._wakeups, self._scope, plan, batch=self._batch, start=start)
        with self._starting:
            if self._driver is not None:
                raise SkepError(f"consumer {self.__name__} is already running", hint="Stop it before it runs again.")
            self._driver = driver
            self._ended.clear()
        try:
            driver.run()
        finally:
            handlers.close()
            self._driver = None
            self._ended.set()

    def stop(self) -> None:
        """Stop leasing, and return when started handlers have finished. Inside a handler it returns at once."""
        if self.begin_stop() and not inside_handler.get():
            self._ended.wait()

    def begin_stop(self) -> bool:
        """Stop leasing, without waiting. Return False if the consumer is not running."""
        if (driver := self._driver) is None:
            return False
        driver.stop()
        return True

    def _handle(self, driver: Driver, batch: Batch) -> None:
        inside_handler.set(True)
        try:
            (self._handle_each(driver, batch) if self._per_message else self._handle_batch(driver, batch))
        except BaseException:  # the program is interrupted, which is not a failure of the messages
            driver.finished(batch, [Ack(batch.lease, None, "release")] if batch.open else [])
            raise

    def _handle_batch(self, driver: Driver, batch: Batch) -> None:
        try:
            runtime.call_handler(self.handler, batch)
            ack = Ack(batch.lease, None, batch.remaining_status)
        except Exception as error:
            log.exception("consumer %s failed on %r", self.__name__, batch)
            ack = Ack(batch.lease, None, "failed", describe(error))
        driver.finished(batch, [ack] if batch.open else [])

    def _handle_each(self, driver: Driver, batch: Batch) -> None:
        """Handle the messages one by one, also after a failure, until the lease is lost."""
        acks = BatchAcks(batch.lease, ACK_DELAY)
        for message in batch:
            if batch.lost:
                break
            self._handle_message(driver, message, acks)
            if due := acks.due(monotonic()):
                driver.acked(due)
        driver.finished(batch, [] if batch.lost else acks.remaining())

    def _handle_message(self, driver: Driver, message: Message, acks: BatchAcks) -> None:
        try:
            runtime.call_handler(self.handler, message)
            acks.completed(message.id)
        except Exception as error:
            log.exception("consumer %s failed on message %s", self.__name__, message.id)
            acks.failed(message.id, describe(error))
        except BaseException:
            driver.acked(acks.due(inf))  # completed messages stay completed
            raise
