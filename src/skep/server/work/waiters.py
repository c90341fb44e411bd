"""Pops of many requests: requests with the same scope wait in one list, and one call serves as many as it can.

    pop ── waiting list of (queue, group, …) ── call ──┬── messages: returned
                ▲                                      ├── nothing, no wait: returned empty
                │                                      └── nothing, wait: back to the front of the list
                └── a push here, a NOTIFY from elsewhere, or once a second if a group has work

However many requests wait in a list, a push costs one call. Requests that name a partition, whichever it is, wait in a
list of their own, and a call serves 64 of them. If a client is gone when its messages come, its lease is released.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from skep.client.aio.database import AsyncDatabase
from skep.errors import Overloaded, SkepError
from skep.scope import Scope
from skep.server.work import calls, tracing

log = logging.getLogger("skep.server")

MERGED = 64  # requests that one call serves at most
POLL = 1.0  # seconds between checks for work without a notice: expired leases, retries, delays, pushes by SQL


class PopOptions(NamedTuple):
    """Everything about a pop except its size."""

    scope: Scope
    lease_time: float | None = None
    auto_ack: bool = False
    conflate: bool = False

    @property
    def waiting_list(self) -> "PopOptions":
        """Return a key that is the same for all requests that one call can serve: which partition does not matter."""
        return self._replace(scope=replace(self.scope, partition="")) if self.is_named else self

    @property
    def is_named(self) -> bool:
        return self.scope.partition is not None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the database call, without those of each request."""
        scope = self.scope
        return {
            "queue": scope.queue,
            "group": scope.group,
            "namespace": scope.namespace,
            "task": scope.task,
            "mode": scope.subscription_mode,
            "start": scope.subscription_from,
            "lease_time": self.lease_time,
            "auto_ack": self.auto_ack,
            "conflate": self.conflate,
        }


class Numbered(Protocol):
    """The result of one request of a call. Requests are numbered from 1."""

    @property
    def request(self) -> int: ...


Popped = TypeVar("Popped", bound=Numbered)


class Popper(Protocol[Popped]):
    """How a protocol pops messages for several requests, and releases what one of them cannot take."""

    async def pop(self, arguments: dict[str, Any]) -> Sequence[Popped]: ...
    async def release(self, popped: Popped) -> None: ...


class _Waiter(Generic[Popped]):
    """One request that waits for messages."""

    __slots__ = ("batch", "partition", "partitions", "result", "wait")

    def __init__(self, batch: int, partitions: int, partition: str | None, *, wait: bool) -> None:
        self.batch = batch
        self.partitions = partitions if partition is None else 1
        self.partition = partition
        self.wait = wait
        self.result: asyncio.Future[Popped | None] = asyncio.get_running_loop().create_future()


class _WaitingList(Generic[Popped]):
    """Requests with the same options. At most one call at a time serves them."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiter[Popped]] = deque()
        self.asking: list[_Waiter[Popped]] = []  # taken from `waiting` by the round under way
        self.task: asyncio.Task[None] | None = None
        self.again = False  # something happened since the round under way began

    def begin(self) -> None:
        """Begin a round for all requests that wait."""
        self.again = False
        self.asking = list(self.waiting)
        self.waiting.clear()

    def leave(self, request: _Waiter[Popped]) -> None:
        with suppress(ValueError):
            self.waiting.remove(request)


class Waiters(Generic[Popped]):
    """All requests of one protocol that wait for messages."""

    def __init__(
        self,
        database: AsyncDatabase,
        popper: Popper[Popped],
        *,
        max_pending: int,
        merged: Callable[[float], None],
        parallel: int = 4,
    ) -> None:
        self._database = database
        self._popper = popper
        self._merged = merged
        self._max_pending = max_pending
        self._calls = asyncio.Semaphore(parallel)
        self._lists: dict[PopOptions, _WaitingList[Popped]] = {}
        self._of_queue: dict[str | None, set[PopOptions]] = {}
        self._count = 0
        self._closing = False
        self._paused = False
        self._background: set[asyncio.Task[None]] = set()
        self._poller: asyncio.Task[None] | None = None

    @property
    def paused(self) -> bool:
        """Return true in pop maintenance mode: nothing is delivered, and polls wait until they time out."""
        return self._paused

    def pause(self, *, paused: bool) -> None:
        self._paused, before = paused, self._paused
        if before and not paused:
            self.wake(None)

    def waiting_by_queue(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for options, waiting_list in self._lists.items():
            counts[options.scope.queue or ""] = counts.get(options.scope.queue or "", 0) + len(waiting_list.waiting)
        return counts

    async def pop(self, options: PopOptions, batch: int, partitions: int, timeout: float) -> Popped | None:  # noqa: ASYNC109
        """Return messages as soon as there are some, or None after `timeout` seconds (0: at once)."""
        if self._count >= self._max_pending:
            raise Overloaded
        request = _Waiter[Popped](batch, partitions, options.scope.partition, wait=timeout > 0 and not self._closing)
        options = options.waiting_list
        waiting_list = self._lists.get(options) or self._open(options)
        waiting_list.waiting.append(request)
        self._count += 1
        self._serve(options, waiting_list)
        timer = (
            asyncio.get_running_loop().call_later(timeout, self._give_up, waiting_list, request)
            if request.wait
            else None
        )
        try:
            return await request.result
        except asyncio.CancelledError:  # the client is gone
            self._release_result(request)
            raise
        finally:
            self._count -= 1
            if timer is not None:
                timer.cancel()
            waiting_list.leave(request)
            self._forget(options, waiting_list)

    def _open(self, options: PopOptions) -> _WaitingList[Popped]:
        waiting_list = self._lists[options] = _WaitingList[Popped]()
        self._of_queue.setdefault(options.scope.queue, set()).add(options)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        return waiting_list

    def _forget(self, options: PopOptions, waiting_list: _WaitingList[Popped]) -> None:
        if not waiting_list.waiting and waiting_list.task is None and self._lists.get(options) is waiting_list:
            del self._lists[options]
            siblings = self._of_queue[options.scope.queue]
            siblings.discard(options)
            if not siblings:
                del self._of_queue[options.scope.queue]

    def _give_up(self, waiting_list: _WaitingList[Popped], request: _Waiter[Popped]) -> None:
        """End the wait of a request. If a call is under way, it may still bring messages, so it decides."""
        request.wait = False
        if waiting_list.task is None and not request.result.done():
            request.result.set_result(None)

    def _release_result(self, request: _Waiter[Popped]) -> None:
        if request.result.done() and not request.result.cancelled() and request.result.exception() is None:
            self.release(request.result.result())

    def release(self, popped: Popped | None) -> None:
        """Release messages whose client is gone."""
        if popped is not None:
            task = asyncio.create_task(self._try_release(popped))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _try_release(self, popped: Popped) -> None:
        try:
            await self._popper.release(popped)
        except SkepError as error:
            log.info("the lease of a disconnected client was not released and will expire: %s", error)

    def wake(self, queues: Iterable[str] | None) -> None:
        """Serve the requests for these queues, which have new messages; None: serve all."""
        woken = list(self._lists) if queues is None else self._waiting_for(queues)
        for options in woken:
            self._serve(options, self._lists[options])

    def _waiting_for(self, queues: Iterable[str]) -> list[PopOptions]:
        """Return the lists for these queues, and those for namespaces and tasks, which any queue may belong to."""
        return [options for queue in (None, *queues) for options in self._of_queue.get(queue, ())]

    def _serve(self, options: PopOptions, waiting_list: _WaitingList[Popped]) -> None:
        waiting_list.again = True
        if waiting_list.task is None and waiting_list.waiting:
            waiting_list.task = asyncio.create_task(self._work(options, waiting_list))

    async def _work(self, options: PopOptions, waiting_list: _WaitingList[Popped]) -> None:
        try:
            while waiting_list.again and waiting_list.waiting:
                await self._round(options, waiting_list)
        except Exception as error:  # noqa: BLE001  every request has to get it
            self._fail([*waiting_list.asking, *waiting_list.waiting], error)
        finally:
            waiting_list.asking = []
            waiting_list.task = None
            self._forget(options, waiting_list)

    async def _round(self, options: PopOptions, waiting_list: _WaitingList[Popped]) -> None:
        """Pop for all requests of a list. After a call that did not serve all, go on only if they name partitions."""
        asked = 0
        while asked == 0 or asked < len(waiting_list.asking):
            async with self._calls:
                if asked == 0:
                    waiting_list.begin()
                offered = [
                    request for request in waiting_list.asking[asked : asked + MERGED] if not request.result.done()
                ]
                asked += MERGED
                popped = await self._call(options, offered) if offered else {}
            self._hand_out(offered, popped)
            if len(popped) < len(offered) and not options.is_named:
                break
        waiting_list.waiting.extendleft(reversed(self._hand_out(waiting_list.asking, {})))
        waiting_list.asking = []

    async def _call(self, options: PopOptions, offered: list[_Waiter[Popped]]) -> dict[int, Popped]:
        if self._paused:
            return {}
        arguments = options.arguments() | {
            "batches": [request.batch for request in offered],
            "partitions": [request.partitions for request in offered],
            "names": [request.partition for request in offered] if options.is_named else None,
        }
        self._merged(len(offered))
        about: dict[str, str | int] = {
            "messaging.destination.name": options.scope.queue or "",
            "messaging.consumer.group.name": options.scope.group,
            "skep.requests": len(offered),
        }
        with tracing.span("pop", about):
            return {row.request: row for row in await self._popper.pop(arguments)}

    def _hand_out(self, requests: list[_Waiter[Popped]], popped: dict[int, Popped]) -> list[_Waiter[Popped]]:
        """Return their messages to the requests, and nothing to those that do not wait. Return the others."""
        left: list[_Waiter[Popped]] = []
        for number, request in enumerate(requests, 1):
            got = popped.get(number)
            if request.result.done():  # cancelled meanwhile
                self.release(got)
            elif got is not None or not request.wait:
                request.result.set_result(got)
            else:
                left.append(request)
        return left

    def _fail(self, requests: list[_Waiter[Popped]], error: Exception) -> None:
        for request in requests:
            if not request.result.done():
                request.result.set_exception(error)

    async def _poll(self) -> None:
        while not self._closing:
            await asyncio.sleep(POLL)
            try:
                for options in await self._with_work():
                    if options in self._lists:
                        self._serve(options, self._lists[options])
            except Exception as error:  # noqa: BLE001  the next check may work
                log.info("could not check for work: %s", error)

    async def _with_work(self) -> list[PopOptions]:
        """Return the lists whose groups may have work, by one call; those of a namespace or task always may."""
        lists = [options for options, waiting_list in self._lists.items() if waiting_list.waiting]
        named = [options for options in lists if options.scope.queue is not None]
        if not named:
            return lists
        arguments = {"queues": [each.scope.queue for each in named], "groups": [each.scope.group for each in named]}
        has_work: list[bool] = await self._database.value(calls.HAS_WORK, arguments)
        return [options for options, yes in zip(named, has_work, strict=True) if yes] + [
            options for options in lists if options.scope.queue is None
        ]

    async def close(self) -> None:
        """End the wait of all requests, then wait for the calls under way."""
        self._closing = True
        if self._poller is not None:
            self._poller.cancel()
        for waiting_list in self._lists.values():
            for request in (*waiting_list.asking, *waiting_list.waiting):
                self._give_up(waiting_list, request)
        running = [waiting_list.task for waiting_list in self._lists.values() if waiting_list.task is not None]
        if running or self._background:
            await asyncio.wait([*running, *self._background])
