# Generated from src/skep/client/aio/buffer.py by `make format`. Change that file.
"""Pushing without waiting: messages collect in memory and are stored together."""

import logging
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg

from skep.client import calls
from skep.client.encode import as_object, dumps
from skep.client.sync import runtime
from skep.client.sync.database import Database
from skep.client.sync.wake import Wakes
from skep.errors import InvalidArgument, MessagesRefused, SkepError
from skep.message import DEFAULT_PARTITION, NewMessage, Receipt

log = logging.getLogger("skep")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0


class Buffer:
    """Accepts messages at once; stores them `size` at a time, or `delay` seconds after the first.

    What is accepted is stored, however often the database fails meanwhile, in order and once: each message gets a
    transaction id, so that a call whose answer was lost can be made again. If `limit` messages wait, push waits too.
    What the database refuses for good is raised by the next call, with the messages. `close()`, or the end of the
    block, stores what is left; only the death of the process loses what it had not stored.
    """

    def __init__(
        self,
        database: Database,
        wakes: Wakes,
        queue: str,
        producer: str | None,
        *,
        size: int,
        delay: float,
        limit: int,
    ) -> None:
        if not 1 <= size <= limit or delay < 0:
            raise InvalidArgument("a buffer needs 1 <= size <= limit and delay >= 0")
        self._database = database
        self._wakes = wakes
        self._queue = queue
        self._producer = producer
        self._size, self._delay, self._limit = size, delay, limit
        self._id = uuid4().hex
        self._waiting: deque[str] = deque()
        self._accepted = self._done = 0
        self._filled = runtime.Event()
        self._hurry = runtime.Event()
        self._watchers: list[tuple[int, runtime.Event]] = []
        self._refused: list[tuple[str, SkepError]] = []
        self._task: runtime.Task | None = None
        self._accepting = runtime.Lock()
        self._closed = False

    def push(
        self,
        payload: object,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str | None = None,
        headers: dict[str, Any] | None = None,
        trace_id: UUID | str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Accept a message. What JSON cannot hold is refused here and now."""
        with self._accepting:
            self._raise_refused()
            if self._closed:
                raise SkepError("this buffer is closed", hint="Make a new one.")
            message = NewMessage(payload, partition, transaction_id, headers, trace_id, delay, deliver_at)
            if transaction_id is None:
                message = replace(message, transaction_id=f"{self._id}.{self._accepted}")
            if delay is not None:
                message = replace(message, delay=None, deliver_at=_due_at(delay, deliver_at))
            text = dumps([as_object(self._queue, message, self._producer)])[1:-1]
            self._stored(self._accepted - self._limit + 1)
            self._accept(text)

    def _accept(self, text: str) -> None:
        self._waiting.append(text)
        self._accepted += 1
        self._filled.set()
        if len(self._waiting) >= self._size:
            self._hurry.set()
        if self._task is None:
            self._task = runtime.Task("buffer", self._run)
            runtime.at_exit(self.close)

    def flush(self) -> None:
        """Return when everything accepted so far is stored."""
        self._stored(self._accepted)
        self._raise_refused()

    def close(self) -> None:
        """Store what is left and end."""
        with self._accepting:
            self._closed = True
            self._filled.set()
            self._hurry.set()
            if self._task is not None:
                self._task.join()
                self._task = None
                runtime.not_at_exit(self.close)
        self._raise_refused()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stored(self, number: int) -> None:
        """Wait until so many messages are done."""
        reached = runtime.Event()
        self._watchers.append((number, reached))
        try:
            if self._done < number:
                self._hurry.set()
                reached.wait()
        finally:
            self._watchers.remove((number, reached))

    def _run(self) -> None:
        while self._waiting or not self._closed:
            self._filled.wait()
            if not self._closed:
                self._hurry.wait(self._delay)
            self._filled.clear()
            self._hurry.clear()
            while self._waiting:
                batch = [self._waiting[number] for number in range(min(self._size, len(self._waiting)))]
                self._store(batch)
                for _ in batch:
                    self._waiting.popleft()
                self._done += len(batch)
                for number, reached in tuple(self._watchers):
                    if self._done >= number:
                        reached.set()

    def _store(self, batch: list[str]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                self._database.call(calls.PUSH, {"messages": f"[{','.join(batch)}]"}, Receipt)
            except (SkepError, psycopg.Error) as error:
                if isinstance(error, SkepError) and not error.retryable:
                    self._sort_out(batch, error)
                    return
                log.warning("%d buffered messages for %s wait: %s", len(self._waiting), self._queue, error)
                runtime.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._wakes.pushed({self._queue})
                return

    def _sort_out(self, batch: list[str], error: SkepError) -> None:
        """One of them is refused: store the others. But what is no fault of a message is the same for all."""
        if len(batch) == 1 or not isinstance(error, InvalidArgument):
            self._refused.extend((message, error) for message in batch)
            return
        middle = len(batch) // 2
        self._store(batch[:middle])
        self._store(batch[middle:])

    def _raise_refused(self) -> None:
        if self._refused:
            refused, self._refused = self._refused, []
            raise MessagesRefused(refused)


def _due_at(delay: float | timedelta, deliver_at: datetime | None) -> datetime:
    """Return when a delay that begins now ends: the message may wait in the buffer for a while."""
    if deliver_at is not None:
        raise InvalidArgument("delay and deliver_at are both given", hint="Give one of them.")
    try:
        return datetime.now(UTC) + (delay if isinstance(delay, timedelta) else timedelta(seconds=delay))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(f"delay must be a number of seconds, got {delay!r}") from error
