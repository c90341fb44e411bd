# Generated from src/skep/client/aio/stream.py by `make format`. Change that file.
"""The iterator behind `for batch in queue.consume(...)`."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from skep.client.plan import Ack, Plan
from skep.client.sync import runtime
from skep.client.sync.batch import Batch
from skep.client.sync.database import Database
from skep.client.sync.driver import Driver
from skep.client.sync.wake import Wakeups
from skep.scope import Scope


class Stream(Iterator[Batch]):
    """Iterates over batches. Asking for the next batch acknowledges the remaining messages of the previous one.

    Leaving the loop releases them without counting an attempt. With `with batch:` inside the loop an exception
    fails the batch.
    """

    def __init__(self, database: Database, wakeups: Wakeups, scope: Scope, plan: Plan, *, batch: int) -> None:
        self._inbox: runtime.Inbox[Batch | BaseException | None] = runtime.Inbox()
        self._driver = Driver(database, wakeups, scope, replace(plan), batch=batch, start=self._inbox.put)
        self._task: runtime.BackgroundTask | None = None
        self._current: Batch | None = None
        self._changing = threading.Lock()  # closing the client ends loops in other threads
        self._ended = False
        self._stopped = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        with self._changing:
            if self._ended:
                raise StopIteration
            if self._task is None:
                self._task = runtime.BackgroundTask("consumer", self._run)
            batch, self._current = self._current, None
        if batch is not None:
            self._driver.finished(batch, [Ack(batch.lease, None, batch.remaining_status)] if batch.open else [])
        first = self._next_item()
        with self._changing:
            closed = self._ended
            if isinstance(first, Batch) and not closed:
                self._current = first
                return first
            self._ended = True
        if closed:
            self._inbox.put(first)  # for close()
        elif isinstance(first, BaseException):
            raise first
        raise StopIteration

    def _next_item(self) -> Batch | BaseException | None:
        items: list[Batch | BaseException | None] = []
        while not items:
            items = self._inbox.take()
        for later in items[1:]:  # the error that ended the driver after its last batch
            self._inbox.put(later)
        return items[0]

    def _run(self) -> None:
        try:
            self._driver.run()
        except BaseException as error:  # noqa: BLE001  # raised in the loop of the caller
            self._inbox.put(error)
        else:
            self._inbox.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the loop and release the messages that are not acknowledged."""
        with self._changing:
            closing, self._ended = not self._ended, True
            current, self._current = self._current, None
        if self._task is None:
            return
        if closing:
            self._driver.stop()
            if current is not None:
                self._release(current)
            while not self._stopped:
                for item in self._inbox.take():
                    if isinstance(item, Batch):
                        self._release(item)
                    else:
                        self._stopped = True
            self._inbox.put(None)  # for a caller that waits for the next batch
        self._task.join()

    def _release(self, batch: Batch) -> None:
        self._driver.finished(batch, [Ack(batch.lease, None, "release")] if batch.open else [])
