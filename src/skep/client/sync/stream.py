# Generated from src/skep/client/aio/stream.py by `make format`. Change that file.
"""`for batch in queue.consume(...)`: the loop is the handler."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from skep.client.plan import Answer, Plan
from skep.client.sync import runtime
from skep.client.sync.batch import Batch
from skep.client.sync.database import Database
from skep.client.sync.driver import Driver
from skep.client.sync.wake import Wakes
from skep.scope import Scope


class Stream(Iterator[Batch]):
    """Batches, one after the other. Going on to the next acknowledges what the last one has not answered.

    Leaving the loop gives back what its batch has not answered, uncharged. `with batch:` inside the loop makes an
    exception a failure of the batch.
    """

    def __init__(self, database: Database, wakes: Wakes, scope: Scope, plan: Plan, *, batch: int) -> None:
        self._handed: runtime.Inbox[Batch | BaseException | None] = runtime.Inbox()
        self._driver = Driver(database, wakes, scope, replace(plan), batch=batch, start=self._handed.put)
        self._task: runtime.Task | None = None
        self._current: Batch | None = None
        self._changing = threading.Lock()  # a client that is closed ends the loops of its other threads
        self._ended = False
        self._stopped = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        with self._changing:
            if self._ended:
                raise StopIteration
            if self._task is None:
                self._task = runtime.Task("consumer", self._run)
            batch, self._current = self._current, None
        if batch is not None:
            self._driver.finished(batch, [Answer(batch.lease, None, batch.rest)] if batch.open else [])
        first = self._next_handed()
        with self._changing:
            closed = self._ended
            if isinstance(first, Batch) and not closed:
                self._current = first
                return first
            self._ended = True
        if closed:
            self._handed.put(first)  # for close()
        elif isinstance(first, BaseException):
            raise first
        raise StopIteration

    def _next_handed(self) -> Batch | BaseException | None:
        handed: list[Batch | BaseException | None] = []
        while not handed:
            handed = self._handed.take()
        for later in handed[1:]:  # the error that ended the driver after its last batch
            self._handed.put(later)
        return handed[0]

    def _run(self) -> None:
        try:
            self._driver.run()
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever iterates
            self._handed.put(error)
        else:
            self._handed.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the loop: what is leased and not answered is given back."""
        with self._changing:
            closing, self._ended = not self._ended, True
            current, self._current = self._current, None
        if self._task is None:
            return
        if closing:
            self._driver.stop()
            if current is not None:
                self._give_back(current)
            while not self._stopped:
                for handed in self._handed.take():
                    if isinstance(handed, Batch):
                        self._give_back(handed)
                    else:
                        self._stopped = True
            self._handed.put(None)  # for one who waits for the next batch
        self._task.join()

    def _give_back(self, batch: Batch) -> None:
        self._driver.finished(batch, [Answer(batch.lease, None, "release")] if batch.open else [])
