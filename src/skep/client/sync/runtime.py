"""What the client needs of threads. `skep.client.aio.runtime` has the same names, made of asyncio."""

import atexit
import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from skep.errors import InvalidArgument

T = TypeVar("T")

Lock = threading.Lock
Interrupted = KeyboardInterrupt  # what ends a consumer from outside
sleep = time.sleep


class Event:
    """A flag that can be waited for, but not for ever."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)


class Inbox(Generic[T]):
    """What others put in, one takes out: everything there is, waiting so long for the first."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._filled = threading.Condition()

    def put(self, item: T) -> None:
        with self._filled:
            self._items.append(item)
            self._filled.notify()

    def take(self, timeout: float | None = None) -> list[T]:
        with self._filled:
            if not self._items:
                self._filled.wait(timeout)
            taken, self._items = self._items, []
            return taken


class Task:
    """Something that runs beside its maker. It never keeps a program from ending."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name=f"skep {name}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()


class Workers:
    """Run handlers beside the driver, so many at once as the driver hands out."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="skep handler")

    def submit(self, work: Callable[[], None]) -> None:
        self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown()


def check_handler(handler: object) -> None:
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        what = "a coroutine function" if callable(handler) else type(handler).__name__
        raise InvalidArgument(f"{what} is not a handler of Skep", hint="Give a plain function, or use AsyncSkep.")


def call_handler(handler: Callable[[Any], Any], argument: object) -> None:
    """Whatever it raises, it is a failure like others."""
    try:
        answer = handler(argument)
    except SystemExit as error:  # in a thread it would end nothing
        raise RuntimeError(f"the handler raised {error!r}") from error
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("the handler returned a coroutine, which only AsyncSkep awaits")


def interruptible() -> AbstractContextManager[None]:
    return nullcontext()


def in_thread(work: Callable[[], T]) -> T:
    return work()


def to_the_end(work: T, _undo: Callable[[T], None]) -> T:
    """A thread is not cancelled: the work is done by now."""
    return work


def gather(works: list[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run all of them at once. When one ends by an error, the others are stopped and the error is raised."""
    with ThreadPoolExecutor(max(1, len(works)), thread_name_prefix="skep consumer") as pool:
        try:  # from the first submit on: Ctrl-C may come while it starts its thread
            futures = [pool.submit(work) for work in works]
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop()
    for future in futures:
        future.result()


def is_ours(method: object) -> bool:
    """Tell whether a method of a caller's connection is of our kind: a plain function."""
    return not inspect.iscoroutinefunction(method)


def at_exit(close: Callable[[], None]) -> None:
    """Close at the end of the program, while the threads in the background still run."""
    atexit.register(close)


def not_at_exit(close: Callable[[], None]) -> None:
    atexit.unregister(close)
