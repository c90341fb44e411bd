"""The runtime of the client on threads. `skep.client.aio.runtime` has the same names, for asyncio."""

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
Interrupted = KeyboardInterrupt  # raised inside a consumer to end it
sleep = time.sleep
CONNECTION_KIND = "a synchronous connection"


class Event:
    """An event whose `wait` has a timeout."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def wait(self, timeout: float | None = None) -> bool:
        return self._event.wait(timeout)


class Inbox(Generic[T]):
    """A mailbox: `take` returns all items, and waits up to `timeout` seconds for the first."""

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


class BackgroundTask:
    """A function that runs in a daemon thread, so it does not keep the program from ending."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name=f"skep {name}", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()


class HandlerPool:
    """Runs handlers in the background. The driver limits how many run at once."""

    def __init__(self, size: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="skep handler")

    def submit(self, work: Callable[[], None]) -> None:
        self._pool.submit(work)

    def close(self) -> None:
        self._pool.shutdown()


def check_handler(handler: object) -> None:
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        given = "a coroutine function" if callable(handler) else type(handler).__name__
        raise InvalidArgument(f"a handler of Skep must be a plain function, got {given}", hint="Or use AsyncSkep.")


def call_handler(handler: Callable[[Any], Any], argument: object) -> None:
    """Call a handler. Any exception is a failure of the message."""
    try:
        result = handler(argument)
    except SystemExit as error:  # in a thread it would not end the program
        raise RuntimeError(f"the handler raised {error!r}") from error
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the handler returned a coroutine; only AsyncSkep awaits coroutines")


def interruptible() -> AbstractContextManager[None]:
    return nullcontext()


def in_thread(work: Callable[[], T]) -> T:
    return work()


def complete_or_undo(work: T, _undo: Callable[[T], None]) -> T:
    """Return the result of the work. A thread cannot be cancelled, so the work is complete."""
    return work


def gather(works: list[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run all of them concurrently. If one raises an error, stop the others and raise it."""
    with ThreadPoolExecutor(max(1, len(works)), thread_name_prefix="skep consumer") as pool:
        try:  # includes submit: Ctrl-C may interrupt the start of its thread
            futures = [pool.submit(work) for work in works]
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop()
    for future in futures:
        future.result()


def is_compatible(method: object) -> bool:
    """Return whether a method of a foreign connection is a plain function."""
    return not inspect.iscoroutinefunction(method)


def at_exit(close: Callable[[], None]) -> None:
    """Close at the end of the program, while background threads still run."""
    atexit.register(close)


def not_at_exit(close: Callable[[], None]) -> None:
    atexit.unregister(close)
