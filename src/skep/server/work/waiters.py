"""GET /api/v1/pop…: requests for the same thing stand in one line, and one call serves as many of them as it can.

    pop ── line of (queue, group, …) ── call ──┬── messages: answered
                ▲                              ├── nothing, no wait: answered empty
                │                              └── nothing, wait: parked at the front of the line
                └── push here, NOTIFY from elsewhere, or once a second whatever is due

However many are parked in a line, a push costs one call. Requests that name a partition, whichever it is, stand in one
line of their own, and a call serves 64 of them. The lease of whoever is gone when messages come is given back.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from skep.client.aio.database import AsyncDatabase
from skep.errors import SkepError
from skep.server.http.asgi import Overloaded
from skep.server.work import calls, tracing

log = logging.getLogger("skep.server")

MERGED = 64  # requests that one call serves at most
POLL = 1.0  # seconds between looks at what nobody told us: leases that end, retries, delays, pushes by SQL


class Wanted(NamedTuple):
    """Everything about a pop but its size."""

    queue: str | None
    group: str
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    lease_time: float | None = None
    auto_ack: bool = False
    mode: str | None = None
    start: str | None = None
    conflate: bool = False

    @property
    def line(self) -> "Wanted":
        """The same for all requests that one call can serve: of a partition it says only that one is named."""
        return self if self.partition is None else self._replace(partition="")

    @property
    def is_named(self) -> bool:
        return self.partition is not None


class Popped(NamedTuple):
    """What a request got: the n-th of a call, from 1 on; messages are JSON, comma-separated. No lease: auto_ack."""

    request: int
    lease: UUID | None
    queue: str
    partition: str
    partition_id: UUID
    partitions: int
    messages: bytes
    sealed: bool
    size: int


class _Request:
    """One who stands in a line."""

    __slots__ = ("answer", "batch", "partition", "partitions", "wait")

    def __init__(self, batch: int, partitions: int, partition: str | None, *, wait: bool) -> None:
        self.batch = batch
        self.partitions = partitions if partition is None else 1
        self.partition = partition
        self.wait = wait
        self.answer: asyncio.Future[Popped | None] = asyncio.get_running_loop().create_future()


class _Line:
    """Those who want the same; served by at most one call at a time."""

    def __init__(self) -> None:
        self.waiting: deque[_Request] = deque()
        self.asking: list[_Request] = []  # taken out of it, in the round under way
        self.task: asyncio.Task[None] | None = None
        self.again = False  # something happened since the round under way began

    def begin(self) -> None:
        """Begin a round: everyone who waits is to be asked for."""
        self.again = False
        self.asking = list(self.waiting)
        self.waiting.clear()

    def leave(self, request: _Request) -> None:
        with suppress(ValueError):
            self.waiting.remove(request)


class Lines:
    """All lines of a server."""

    def __init__(
        self, database: AsyncDatabase, *, max_pending: int, merged: Callable[[float], None], parallel: int = 4
    ) -> None:
        self._database = database
        self._merged = merged
        self._max_pending = max_pending
        self._calls = asyncio.Semaphore(parallel)
        self._lines: dict[Wanted, _Line] = {}
        self._of_queue: dict[str | None, set[Wanted]] = {}
        self._parked = 0
        self._closing = False
        self._paused = False
        self._background: set[asyncio.Task[None]] = set()
        self._poller: asyncio.Task[None] | None = None

    @property
    def paused(self) -> bool:
        """Nothing is delivered now: polls wait for their time to be up."""
        return self._paused

    def pause(self, *, paused: bool) -> None:
        self._paused, before = paused, self._paused
        if before and not paused:
            self.wake(None)

    def parked_by_queue(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for wanted, line in self._lines.items():
            counts[wanted.queue or ""] = counts.get(wanted.queue or "", 0) + len(line.waiting)
        return counts

    async def pop(self, wanted: Wanted, batch: int, partitions: int, timeout: float) -> Popped | None:  # noqa: ASYNC109
        """Return messages as soon as there are some, or None after `timeout` seconds (0: at once)."""
        if self._parked >= self._max_pending:
            raise Overloaded
        request = _Request(batch, partitions, wanted.partition, wait=timeout > 0 and not self._closing)
        wanted = wanted.line
        line = self._lines.get(wanted) or self._open(wanted)
        line.waiting.append(request)
        self._parked += 1
        self._serve(wanted, line)
        timer = asyncio.get_running_loop().call_later(timeout, self._give_up, line, request) if request.wait else None
        try:
            return await request.answer
        except asyncio.CancelledError:  # the client is gone
            self._hand_back(request)
            raise
        finally:
            self._parked -= 1
            if timer is not None:
                timer.cancel()
            line.leave(request)
            self._forget(wanted, line)

    def _open(self, wanted: Wanted) -> _Line:
        line = self._lines[wanted] = _Line()
        self._of_queue.setdefault(wanted.queue, set()).add(wanted)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        return line

    def _forget(self, wanted: Wanted, line: _Line) -> None:
        if not line.waiting and line.task is None and self._lines.get(wanted) is line:
            del self._lines[wanted]
            siblings = self._of_queue[wanted.queue]
            siblings.discard(wanted)
            if not siblings:
                del self._of_queue[wanted.queue]

    def _give_up(self, line: _Line, request: _Request) -> None:
        """Time is up. If a call is under way it may still bring something, so that it decides."""
        request.wait = False
        if line.task is None and not request.answer.done():
            request.answer.set_result(None)

    def _hand_back(self, request: _Request) -> None:
        if request.answer.done() and not request.answer.cancelled() and request.answer.exception() is None:
            self.give_back(request.answer.result())

    def give_back(self, popped: Popped | None) -> None:
        """Let others have what nobody is there to take."""
        if popped is not None and popped.lease is not None:
            task = asyncio.create_task(self._release(popped.lease))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _release(self, lease: UUID) -> None:
        try:
            await self._database.value(calls.RELEASE, {"lease": lease})
        except SkepError as error:
            log.info("the lease of a client that went away runs out by itself: %s", error)

    def wake(self, queues: Iterable[str] | None) -> None:
        """Something was stored in these queues; None: perhaps, anywhere."""
        woken = list(self._lines) if queues is None else self._wanting(queues)
        for wanted in woken:
            self._serve(wanted, self._lines[wanted])

    def _wanting(self, queues: Iterable[str]) -> list[Wanted]:
        """Return the lines of these queues, and those of namespaces and tasks, whose any queue may be."""
        return [wanted for queue in (None, *queues) for wanted in self._of_queue.get(queue, ())]

    def _serve(self, wanted: Wanted, line: _Line) -> None:
        line.again = True
        if line.task is None and line.waiting:
            line.task = asyncio.create_task(self._work(wanted, line))

    async def _work(self, wanted: Wanted, line: _Line) -> None:
        try:
            while line.again and line.waiting:
                await self._round(wanted, line)
        except Exception as error:  # noqa: BLE001  each of them has to hear it
            self._fail([*line.asking, *line.waiting], error)
        finally:
            line.asking = []
            line.task = None
            self._forget(wanted, line)

    async def _round(self, wanted: Wanted, line: _Line) -> None:
        """Ask for everyone in the line; after a call that did not serve all only those go on who name partitions."""
        asked = 0
        while asked == 0 or asked < len(line.asking):
            async with self._calls:
                if asked == 0:
                    line.begin()
                offered = [request for request in line.asking[asked : asked + MERGED] if not request.answer.done()]
                asked += MERGED
                popped = await self._call(wanted, offered) if offered else {}
            self._deal(offered, popped)
            if len(popped) < len(offered) and not wanted.is_named:
                break
        line.waiting.extendleft(reversed(self._deal(line.asking, {})))
        line.asking = []

    async def _call(self, wanted: Wanted, offered: list[_Request]) -> dict[int, Popped]:
        if self._paused:
            return {}
        arguments: dict[str, Any] = wanted._asdict() | {
            "batches": [request.batch for request in offered],
            "partitions": [request.partitions for request in offered],
            "names": [request.partition for request in offered] if wanted.is_named else None,
        }
        self._merged(len(offered))
        about: dict[str, str | int] = {
            "messaging.destination.name": wanted.queue or "",
            "messaging.consumer.group.name": wanted.group,
            "skep.requests": len(offered),
        }
        with tracing.span("pop", about):
            rows = await self._database.call(calls.POP, arguments, Popped, binary=True)
        return {row.request: row for row in rows}

    def _deal(self, requests: list[_Request], popped: dict[int, Popped]) -> list[_Request]:
        """Answer those who got something and those who do not wait; return the others."""
        left: list[_Request] = []
        for number, request in enumerate(requests, 1):
            got = popped.get(number)
            if request.answer.done():  # cancelled meanwhile
                self.give_back(got)
            elif got is not None or not request.wait:
                request.answer.set_result(got)
            else:
                left.append(request)
        return left

    def _fail(self, requests: list[_Request], error: Exception) -> None:
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(error)

    async def _poll(self) -> None:
        while not self._closing:
            await asyncio.sleep(POLL)
            try:
                for wanted in await self._due():
                    if wanted in self._lines:
                        self._serve(wanted, self._lines[wanted])
            except Exception as error:  # noqa: BLE001  the next look may work
                log.info("could not look for what is due: %s", error)

    async def _due(self) -> list[Wanted]:
        """Ask once for all lines; those of a namespace or task are looked at one by one."""
        lines = [wanted for wanted, line in self._lines.items() if line.waiting]
        named = [wanted for wanted in lines if wanted.queue is not None]
        if not named:
            return lines
        arguments = {"queues": [each.queue for each in named], "groups": [each.group for each in named]}
        due: list[bool] = await self._database.value(calls.DUE, arguments)
        return [wanted for wanted, is_due in zip(named, due, strict=True) if is_due] + [
            wanted for wanted in lines if wanted.queue is None
        ]

    async def close(self) -> None:
        """Answer everyone who is parked, then wait for what is under way."""
        self._closing = True
        if self._poller is not None:
            self._poller.cancel()
        for line in self._lines.values():
            for request in (*line.asking, *line.waiting):
                self._give_up(line, request)
        running = [line.task for line in self._lines.values() if line.task is not None]
        if running or self._background:
            await asyncio.wait([*running, *self._background])
