"""The synchronous client with the interface of the asynchronous one, so that a test is written once.

A test is written for AsyncSkep. For Skep every method that AsyncSkep awaits runs in a new thread, and
coroutine handlers are called from its threads.
"""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast

from skep import AsyncSkep, Skep
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.buffer import AsyncBuffer
from skep.client.aio.consumer import AsyncConsumer
from skep.client.aio.queue import AsyncQueue
from skep.client.aio.transaction import AsyncTransaction
from skep.client.sync.batch import Batch
from skep.client.sync.buffer import Buffer
from skep.client.sync.consumer import Consumer
from skep.client.sync.queue import Queue
from skep.client.sync.transaction import Transaction

T = TypeVar("T")
Face = Literal["async", "sync"]

TWINS: dict[type, type] = {
    Batch: AsyncBatch,
    Buffer: AsyncBuffer,
    Consumer: AsyncConsumer,
    Queue: AsyncQueue,
    Skep: AsyncSkep,
    Transaction: AsyncTransaction,
}


def make(face: Face, url: str | None, **options: Any) -> AsyncSkep:
    """Return a client of this kind, with the interface of AsyncSkep."""
    return AsyncSkep(url, **options) if face == "async" else cast("AsyncSkep", ThreadedSkep(Skep(url, **options)))


async def in_thread(work: Callable[[], T]) -> T:
    """Run a function in a new daemon thread: many may wait, and none may keep the tests from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(setter: Callable[[Any], None], outcome: object) -> None:
        with suppress(RuntimeError):  # the test has ended
            loop.call_soon_threadsafe(lambda: future.done() or setter(outcome))

    def run() -> None:
        try:
            outcome = work()
        except BaseException as error:  # noqa: BLE001  # it belongs to who waits
            tell(future.set_exception, error)
        else:
            tell(future.set_result, outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future


class Threaded:
    """An object of the synchronous client."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.plain, name)
        twin = getattr(TWINS[type(self.plain)], name, None)
        if inspect.iscoroutinefunction(twin):
            return functools.partial(_call_in_thread, value)
        if inspect.isasyncgenfunction(twin):
            return lambda *args, **options: _iterate(value(*args, **options))
        return functools.partial(_call, value) if callable(value) else value

    async def __aenter__(self) -> Any:
        return _dressed(await in_thread(self.plain.__enter__))

    async def __aexit__(self, *error: object) -> None:
        await in_thread(lambda: self.plain.__exit__(*error))

    def __call__(self, argument: object) -> object:
        return self.plain(argument)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: Any) -> Any:
        return self.plain[index]

    def __bool__(self) -> bool:
        return bool(self.plain)

    def __repr__(self) -> str:
        return repr(self.plain)


class ThreadedSkep(Threaded):
    """The synchronous client. Its handlers may be coroutine functions of the test."""

    def consumer(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        decorate = self.plain.consumer(*args, **options)
        return lambda handler: _dressed(decorate(_callable_from_threads(handler)))


def _callable_from_threads(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    if not inspect.iscoroutinefunction(handler):
        return handler
    loop = asyncio.get_running_loop()

    @functools.wraps(handler)
    def call(argument: object) -> Any:
        return asyncio.run_coroutine_threadsafe(handler(_dressed(argument)), loop).result()

    return call


def _call(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    bare = {name: _bare(value) for name, value in options.items()}
    return _dressed(work(*map(_bare, args), **bare))


async def _call_in_thread(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
    context = contextvars.copy_context()
    return await in_thread(lambda: context.run(_call, work, *args, **options))


async def _iterate(items: Generator[Any]) -> AsyncGenerator[Any]:
    end = object()
    try:
        while (item := await in_thread(lambda: next(items, end))) is not end:
            yield _dressed(item)
    finally:
        await in_thread(items.close)


def _dressed(value: Any) -> Any:
    return Threaded(value) if type(value) in TWINS else value


def _bare(value: Any) -> Any:
    return value.plain if isinstance(value, Threaded) else value
