# Generated from src/skep/client/aio/buffer.py by `make format`. Change that file.
"""Buffers: they collect messages in memory and store them together in the background."""

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
from skep.client.sync.wake import Wakeups
from skep.errors import InvalidArgument, MessagesRefused, SkepError
from skep.message import DEFAULT_PARTITION, NewMessage, Receipt

log = logging.getLogger("skep")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0


class Buffer:
    """Accepts messages at once, and stores them `size` at a time or `delay` seconds after the first.

    Accepted messages are stored in order and exactly once, even if the database fails meanwhile: each gets a
    transaction id (dedup key), so that a call can be repeated. If `limit` messages are waiting, push waits as well. The
    next call raises an error with the messages that the database refused. `close()`, or the end of the block, stores
    all waiting messages. They are lost only if the process dies.
    """

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups,
        queue: str,
        producer: str | None,
        *,
        size: int,
        delay: float,
        limit: int,
    ) -> None:
        if not 1 <= size <= limit or delay < 0:
            raise InvalidArgument(
                f"size must be between 1 and limit, and delay at least 0, got size {size}, limit {limit}, delay {delay}"
            )
        self._database = database
        self._wakeups = wakeups
        self._queue = queue
        self._producer = producer
        self._size, self._delay, self._limit = size, delay, limit
        self._id = uuid4().hex
        self._waiting: deque[str] = deque()
        self._accepted = self._done = 0
        self._filled = runtime.Event()
        self._full = runtime.Event()
        self._waiters: list[tuple[int, runtime.Event]] = []
        self._refused: list[tuple[str, SkepError]] = []
        self._task: runtime.BackgroundTask | None = None
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
        """Accept a message. Raise at once if it cannot be written as JSON."""
        with self._accepting:
            self._raise_refused()
            if self._closed:
                raise SkepError("this buffer is closed", hint="Create a new one.")
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
            self._full.set()
        if self._task is None:
            self._task = runtime.BackgroundTask("buffer", self._run)
            runtime.at_exit(self.close)

    def flush(self) -> None:
        """Wait until all messages accepted so far are stored."""
        self._stored(self._accepted)
        self._raise_refused()

    def close(self) -> None:
        """Store the waiting messages and close the buffer."""
        with self._accepting:
            self._closed = True
            self._filled.set()
            self._full.set()
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
        """Wait until the first `number` messages are stored or refused."""
        reached = runtime.Event()
        self._waiters.append((number, reached))
        try:
            if self._done < number:
                self._full.set()
                reached.wait()
        finally:
            self._waiters.remove((number, reached))

    def _run(self) -> None:
        while self._waiting or not self._closed:
            self._filled.wait()
            if not self._closed:
                self._full.wait(self._delay)
            self._filled.clear()
            self._full.clear()
            while self._waiting:
                batch = [self._waiting[number] for number in range(min(self._size, len(self._waiting)))]
                self._store(batch)
                for _ in batch:
                    self._waiting.popleft()
                self._done += len(batch)
                for number, reached in tuple(self._waiters):
                    if self._done >= number:
                        reached.set()

    def _store(self, batch: list[str]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                self._database.call(calls.PUSH, {"messages": f"[{','.join(batch)}]"}, Receipt)
            except (SkepError, psycopg.Error) as error:
                if isinstance(error, SkepError) and not error.retryable:
                    self._store_halves(batch, error)
                    return
                log.warning("%d buffered messages for %s are waiting: %s", len(self._waiting), self._queue, error)
                runtime.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._wakeups.pushed({self._queue})
                return

    def _store_halves(self, batch: list[str], error: SkepError) -> None:
        """Store all but the refused messages by halving the batch. An error that is not about a message refuses all."""
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
    """Return the end of a delay that begins now, because the message may wait in the buffer for a while."""
    if deliver_at is not None:
        raise InvalidArgument("delay and deliver_at are both given", hint="Pass one of them.")
    try:
        return datetime.now(UTC) + (delay if isinstance(delay, timedelta) else timedelta(seconds=delay))
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(f"delay must be a number of seconds, got {delay!r}") from error
