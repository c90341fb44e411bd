"""What the client needs of asyncio. `skep.client.sync.runtime` has the same names, made of threads."""

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

# For plain handlers: threads as needed, where asyncio's own pool has no more than the cores and four.
_threads = ThreadPoolExecutor(10_000, thread_name_prefix="skep handler")

Lock = asyncio.Lock
Interrupted = asyncio.CancelledError  # what ends a consumer from outside
sleep = asyncio.sleep


class Event:
    """A flag that can be waited for, but not for ever."""

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
    """What others put in, one takes out: everything there is, waiting so long for the first."""

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


class Task:
    """Something that runs beside its maker."""

    def __init__(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = asyncio.create_task(work(), name=f"skep {name}")

    async def join(self) -> None:
        await asyncio.wait([self._task])


class Workers:
    """Run handlers beside the driver, so many at once as the driver hands out."""

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
        raise InvalidArgument(f"{type(handler).__name__} is not a handler", hint="A handler is a function.")


async def call_handler(handler: Callable[[Any], Any], argument: object) -> None:
    """Call a coroutine function here and a plain function, which may block, in a thread.

    Whatever it raises, it is a failure like others, unless this task itself is cancelled.
    """
    try:
        if inspect.iscoroutinefunction(handler):
            await handler(argument)
        else:
            context = contextvars.copy_context()
            call = lambda: context.run(_call_plain, handler, argument)  # noqa: E731
            answer = await asyncio.get_running_loop().run_in_executor(_threads, call)
            if inspect.isawaitable(answer):
                await answer
    except (SystemExit, asyncio.CancelledError) as error:
        if (task := asyncio.current_task()) and task.cancelling():
            raise
        raise RuntimeError(f"the handler raised {error!r}") from error


def _call_plain(handler: Callable[[Any], Any], argument: object) -> object:
    try:
        return handler(argument)
    except StopIteration as error:  # a future cannot hold it: who awaits it would wait for ever
        raise RuntimeError(f"the handler raised {error!r}") from error


@contextmanager
def interruptible() -> Generator[None]:
    """Be cancelled in the end if a cancellation got lost inside, as asyncio.wait_for loses some before Python 3.12."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def to_the_end(work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]]) -> T:
    """Let the work end even if its caller is cancelled, and then undo it: a lease that nobody would know of."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await undo(await task)
        except Exception as error:  # noqa: BLE001  # who was cancelled ends by that and by nothing else
            log.info("could not undo what was cancelled: %s", error)
        raise


async def gather(works: list[Callable[[], Coroutine[Any, Any, None]]], stop: Callable[[], Awaitable[None]]) -> None:
    """Run all of them at once. When one ends by an error, the others are stopped and the error is raised."""
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


def is_ours(method: object) -> bool:
    """Tell whether a method of a caller's connection is of our kind: a coroutine function."""
    return inspect.iscoroutinefunction(method)


def at_exit(_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """No event loop is left at the end of a program; its blocks have closed everything."""


def not_at_exit(_close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Nothing to take back."""
