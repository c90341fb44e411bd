"""The runtime of the client on asyncio. `skep.client.sync.runtime` has the same names, for threads."""

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from skep.errors import InvalidArgument

log = logging.getLogger("skep")
T = TypeVar("T")

# For plain functions as handlers: asyncio's own pool has only four threads more than there are cores.
_threads = ThreadPoolExecutor(10_000, thread_name_prefix="skep handler")

Lock = asyncio.Lock
Interrupted = asyncio.CancelledError  # raised inside a consumer to end it
sleep = asyncio.sleep
CONNECTION_KIND = "an asynchronous connection"


class Event:
    """An event whose `wait` has a timeout."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, timeout: float | None = None) -> bool:
        try:
            async with asyncio.timeout(timeout):
                return await self._event.wait()
        except TimeoutError:
            return False


class Inbox(Generic[T]):
    """A mailbox: `take` returns all items, and waits up to `timeout` seconds for the first."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._filled = Event()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.set()

    async def take(self, timeout: float | None = None) -> list[T]:
        if not self._items:
            self._filled.clear()
            await self._filled.wait(timeout)
        return [self._items.popleft() for _ in range(len(self._items))]


class BackgroundTask:
    """A coroutine that runs in the background."""

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.create_task(work(), name=f"skep {name}")

    async def join(self) -> None:
        await asyncio.wait([self._task])


class HandlerPool:
    """Runs handlers in the background. The driver limits how many run at once."""

    def __init__(self, _size: int) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(work(), name="skep handler")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)


def check_handler(handler: object) -> None:
    if not callable(handler):
        raise InvalidArgument(f"a handler must be a function, got {type(handler).__name__}")


async def call_handler(handler: Callable[[Any], Any], argument: object) -> None:
    """Call a coroutine function directly and a plain function, which may block, in a thread.

    Any exception is a failure of the message, unless this task itself is cancelled.
    """
    try:
        if inspect.iscoroutinefunction(handler):
            await handler(argument)
        else:
            context = contextvars.copy_context()
            call = lambda: context.run(_call_plain, handler, argument)  # noqa: E731
            result = await asyncio.get_running_loop().run_in_executor(_threads, call)
            if inspect.isawaitable(result):
                await result
    except (SystemExit, asyncio.CancelledError) as error:
        if (task := asyncio.current_task()) and task.cancelling():
            raise
        raise RuntimeError(f"the handler raised {error!r}") from error


def _call_plain(handler: Callable[[Any], Any], argument: object) -> object:
    try:
        return handler(argument)
    except StopIteration as error:  # a future cannot hold it, and its caller would wait forever
        raise RuntimeError(f"the handler raised {error!r}") from error


@contextmanager
def interruptible() -> Generator[None]:
    """Raise CancelledError at the end if the block lost a cancellation, as asyncio.wait_for may before Python 3.12."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def complete_or_undo(work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]]) -> T:
    """Complete the work even if the caller is cancelled, and then undo it, so that no unused lease remains."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await undo(await task)
        except Exception as error:  # noqa: BLE001  # the caller must see its cancellation and nothing else
            log.info("could not undo a cancelled call: %s", error)
        raise


async def gather(works: list[Callable[[], Coroutine[Any, Any, None]]], stop: Callable[[], Awaitable[None]]) -> None:
    """Run all of them concurrently. If one raises an error, stop the others and raise it."""
    tasks = [asyncio.create_task(work()) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await stop()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def is_compatible(method: object) -> bool:
    """Return whether a method of a foreign connection is a coroutine function."""
    return inspect.iscoroutinefunction(method)


def at_exit(_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do nothing: no event loop is running at the end of the program."""


def not_at_exit(_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do nothing, as `at_exit`."""
