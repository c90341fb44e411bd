"""Handlers: functions that are called with each message, or with each batch."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

from skep.client.aio import runtime
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.driver import AsyncDriver
from skep.client.aio.wake import AsyncWakes
from skep.client.encode import describe
from skep.client.handling import inside_handler
from skep.client.plan import Answer, Plan, Tally
from skep.errors import SkepError
from skep.message import Message
from skep.scope import Scope

log = logging.getLogger("skep")

ANSWER_DELAY = 0.5  # how much work may be done again after a crash


class AsyncConsumer:
    """A handler and the messages it is for. `run()` works until `stop()`; what is begun is finished and stored.

    An exception is a failure of its message (or of what its batch has not answered), with its text.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        wakes: AsyncWakes,
        scope: Scope,
        plan: Plan,
        *,
        handler: Callable[[Any], Any],
        batch: int,
        per_message: bool,
    ) -> None:
        runtime.check_handler(handler)
        self._database = database
        self._wakes = wakes
        self._source = scope
        self._plan = plan
        self._batch = batch
        self._per_message = per_message
        self._driver: AsyncDriver | None = None
        self._starting = threading.Lock()
        self._ended = runtime.Event()
        self.handler = handler
        self.__name__: str = getattr(handler, "__name__", "handler")

    def __call__(self, argument: object) -> object:
        """Call the handler itself, as if it had not been decorated."""
        return self.handler(argument)

    async def run(self) -> None:
        """Consume until stopped. A fault that will not go away by itself (no rights, no such schema) is raised."""
        workers = runtime.Workers(self._plan.concurrency)

        def start(batch: AsyncBatch) -> None:
            workers.submit(lambda: self._handle(driver, batch))

        plan = replace(self._plan)  # a fresh state: a consumer can run again
        driver = AsyncDriver(self._database, self._wakes, self._source, plan, batch=self._batch, start=start)
        with self._starting:
            if self._driver is not None:
                raise SkepError(f"consumer {self.__name__} is running already", hint="Stop it before it runs again.")
            self._driver = driver
            self._ended.clear()
        try:
            await driver.run()
        finally:
            await workers.close()
            self._driver = None
            self._ended.set()

    async def stop(self) -> None:
        """Lease nothing more, and return when what was begun is finished and stored; at once inside a handler."""
        if self.lease_no_more() and not inside_handler.get():
            await self._ended.wait()

    def lease_no_more(self) -> bool:
        """Begin to stop. False if it does not run."""
        if (driver := self._driver) is None:
            return False
        driver.stop()
        return True

    async def _handle(self, driver: AsyncDriver, batch: AsyncBatch) -> None:
        inside_handler.set(True)
        try:
            await (self._each(driver, batch) if self._per_message else self._whole(driver, batch))
        except BaseException:  # somebody ends the program: no fault of the messages
            driver.finished(batch, [Answer(batch.lease, None, "release")] if batch.open else [])
            raise

    async def _whole(self, driver: AsyncDriver, batch: AsyncBatch) -> None:
        try:
            await runtime.call_handler(self.handler, batch)
            rest = Answer(batch.lease, None, batch.rest)
        except Exception as error:
            log.exception("consumer %s failed on %r", self.__name__, batch)
            rest = Answer(batch.lease, None, "failed", describe(error))
        driver.finished(batch, [rest] if batch.open else [])

    async def _each(self, driver: AsyncDriver, batch: AsyncBatch) -> None:
        """A failed message does not stop the ones after it. Once the lease is lost, the rest is somebody else's."""
        tally = Tally(batch.lease, ANSWER_DELAY)
        for message in batch:
            if batch.lost:
                break
            await self._one(driver, message, tally)
            if due := tally.due(monotonic()):
                driver.answered(due)
        driver.finished(batch, [] if batch.lost else tally.rest())

    async def _one(self, driver: AsyncDriver, message: Message, tally: Tally) -> None:
        try:
            await runtime.call_handler(self.handler, message)
            tally.completed(message.id)
        except Exception as error:
            log.exception("consumer %s failed on message %s", self.__name__, message.id)
            tally.failed(message.id, describe(error))
        except BaseException:
            driver.answered(tally.due(inf))  # what is done is done
            raise
