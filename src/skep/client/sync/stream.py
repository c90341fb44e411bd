# Generated from src/skep/client/aio/stream.py by `make format`. Change that file.
"""`for batch in queue.consume(...)`: the loop is the handler."""

from collections.abc import Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from skep.client.plan import Answer, Plan
from skep.client.source import Source
from skep.client.sync import runtime
from skep.client.sync.batch import Batch
from skep.client.sync.database import Database
from skep.client.sync.driver import Driver
from skep.client.sync.wake import Wakes


class Stream(Iterator[Batch]):
    """Batches, one after the other. Going on to the next acknowledges what the last one has not answered.

    Leaving the loop gives back what its batch has not answered, uncharged. `with batch:` inside the loop makes an
    exception a failure of the batch.
    """

    def __init__(self, database: Database, wakes: Wakes, source: Source, plan: Plan, *, batch: int) -> None:
        self._handed: runtime.Inbox[Batch | BaseException | None] = runtime.Inbox()
        self._driver = Driver(database, wakes, source, replace(plan), batch=batch, start=self._handed.put)
        self._task: runtime.Task | None = None
        self._current: Batch | None = None
        self._ended = False
        self._stopped = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        if self._task is None:
            self._task = runtime.Task("consumer", self._run)
        if batch := self._current:
            self._current = None
            self._driver.finished(batch, [Answer(batch.lease, None, batch.rest)] if batch.open else [])
        handed: list[Batch | BaseException | None] = []
        while not handed:
            handed = self._handed.take()
        first = handed[0]
        if isinstance(first, Batch):
            self._current = first
            return first
        self._ended = True
        raise first or StopIteration

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
        if self._task is None or self._ended:
            return
        self._ended = True
        self._driver.stop()
        if self._current is not None:
            self._give_back(self._current)
        while not self._stopped:
            for handed in self._handed.take():
                if isinstance(handed, Batch):
                    self._give_back(handed)
                else:
                    self._stopped = True
        self._task.join()

    def _give_back(self, batch: Batch) -> None:
        self._driver.finished(batch, [Answer(batch.lease, None, "retry")] if batch.open else [])
