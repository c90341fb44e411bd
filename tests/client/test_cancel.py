"""Cancelled tasks, cancelled runs, interrupted programs: no lease is left behind."""

import asyncio
import functools
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep, Message, Skep
from skep.client.aio.database import AsyncDatabase
from skep.errors import DatabaseUnavailable, InvalidArgument
from tests.client.verbs import dead, drain, lag, leased, opened, payloads, refused, until
from tests.engine.verbs import broken

GROUP: Any = {"group": "g"}


@pytest.fixture
async def mq(db: psycopg.Connection, module_database_url: str) -> AsyncGenerator[AsyncSkep]:
    """Threads cannot be cancelled: these tests use the asynchronous client."""
    async with AsyncSkep(module_database_url, poll_interval=0.05) as client:
        yield client


class Slow:
    """A database whose responses are delayed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.done, self.respond = asyncio.Event(), asyncio.Event()
        ask = AsyncDatabase.call

        async def call(database: AsyncDatabase, *arguments: Any) -> Any:
            rows = [] if error else await ask(database, *arguments)
            self.done.set()
            await self.respond.wait()
            if error:
                raise error
            return rows

        monkeypatch.setattr(AsyncDatabase, "call", call)


async def cancelled(task: asyncio.Task) -> bool:
    await asyncio.wait([task])
    return task.cancelled()


@pytest.mark.parametrize("wait", [0, 10])
async def test_a_cancelled_pop_leaves_no_lease(
    mq: AsyncSkep, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, wait: float
):
    """The caller is cancelled before it gets the lease: the lease is released."""
    await mq.queue("orders").push("a")
    slow = Slow(monkeypatch)
    task = asyncio.create_task(mq.queue("orders").pop(wait=wait, **GROUP))
    await slow.done.wait()
    assert leased(db) == 1
    task.cancel()
    slow.respond.set()
    assert await cancelled(task)
    assert (leased(db), broken(db)) == (0, {})
    (message,) = await mq.queue("orders").pop(**GROUP)
    assert (message.payload, message.attempt) == ("a", 1)


async def test_a_lost_cancellation(mq: AsyncSkep, monkeypatch: pytest.MonkeyPatch):
    """Python 3.11 may lose a cancellation that arrives with the awaited result: the call is cancelled all the same."""
    live_connection = AsyncDatabase._live_connection

    async def deaf(*arguments: Any) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await live_connection(*arguments)

    monkeypatch.setattr(AsyncDatabase, "_live_connection", deaf)
    task = asyncio.create_task(mq.queue("orders").push("a"))
    await asyncio.sleep(0.05)
    task.cancel()
    assert await cancelled(task)


async def test_pops_cancelled_at_any_moment(mq: AsyncSkep, db: psycopg.Connection):
    """No lease, no connection and no waiter is left."""
    await mq.queue("orders").push("a")
    ends = set()
    for moment in range(60):
        task = asyncio.create_task(mq.queue("orders").pop(wait=0.5, **GROUP))
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        ends.add(await cancelled(task))
        if not task.cancelled():
            await task.result().release()
        assert leased(db) == 0
    assert True in ends
    assert mq._wakeups._waiters == set()
    assert payloads(await drain(mq.queue("orders"))) == ["a"]


async def test_a_pop_with_a_timeout(mq: AsyncSkep):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await mq.queue("orders").pop(wait=60)


async def test_a_fault_does_not_hide_a_cancellation(mq: AsyncSkep, monkeypatch: pytest.MonkeyPatch):
    slow = Slow(monkeypatch, DatabaseUnavailable("gone"))
    task = asyncio.create_task(mq.queue("orders").pop())
    await slow.done.wait()
    task.cancel()
    slow.respond.set()
    assert await cancelled(task)


async def test_a_cancelled_run_finishes_started_handlers(mq: AsyncSkep, db: psycopg.Connection):
    gate, begun = asyncio.Event(), asyncio.Event()

    @mq.consumer("orders", batch=1, **GROUP)
    async def handle(message: Message) -> None:
        begun.set()
        await opened(gate)

    await mq.queue("orders").push_many("ab")
    for run in (handle.run, mq.run):
        task = asyncio.create_task(run())
        await begun.wait()
        task.cancel()
        gate.set()
        assert await cancelled(task)
        gate.clear()
        begun.clear()
    assert (await lag(mq.queue("orders")), leased(db)) == ({"Default": 0}, 0)


async def test_a_run_can_be_cancelled_while_the_database_is_down(mq: AsyncSkep, monkeypatch: pytest.MonkeyPatch):
    """It ends even if the database fails at the same moment."""
    slow = Slow(monkeypatch, DatabaseUnavailable("gone"))
    task = asyncio.create_task(mq.consumer("orders")(print).run())
    await slow.done.wait()
    task.cancel()
    slow.respond.set()
    assert await cancelled(task)


async def test_a_cancelled_loop_releases(mq: AsyncSkep, db: psycopg.Connection):
    await mq.queue("orders").push_many("abc")
    begun = asyncio.Event()

    async def loop() -> None:
        async for _ in mq.queue("orders").consume(batch=1, **GROUP):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    assert await cancelled(task)
    await until(lambda: leased(db) == 0, "the lease to be released")
    assert [(message.payload, message.attempt) for message in await drain(mq.queue("orders"))] == [
        ("a", 1), ("b", 1), ("c", 1),
    ]  # fmt: skip


async def test_a_cancelled_block_releases(mq: AsyncSkep, db: psycopg.Connection):
    await mq.queue("orders").push("a")
    begun = asyncio.Event()

    async def work() -> None:
        async with await mq.queue("orders").pop(**GROUP):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    assert await cancelled(task)
    assert leased(db) == 0


async def test_a_handler_that_raises_cancelled_has_failed(mq: AsyncSkep):
    """The task was not cancelled; a release without an attempt would deliver the message forever."""

    @mq.consumer("orders", **GROUP)
    async def handle(message: Message) -> None:
        raise asyncio.CancelledError

    await mq.queue("orders").configure(retry_limit=0)
    await mq.queue("orders").push("a")
    task = asyncio.create_task(handle.run())
    await until(lambda: dead(mq, "orders"), "the dead letter")
    await handle.stop()
    await task
    assert "CancelledError" in (await dead(mq, "orders"))[0]


class Caller:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def __call__(self, message: Message) -> None:
        await asyncio.sleep(0)
        self.seen.append(message.payload)

    async def also(self, _: str, message: Message) -> None:
        await self(message)


@pytest.mark.parametrize("kind", ["lambda", "object", "method", "partial"])
async def test_a_handler_that_returns_an_awaitable_is_awaited(mq: AsyncSkep, kind: str):
    """The message is not completed before that."""
    seen: list[str] = []
    caller = Caller(seen)
    handlers: dict[str, Callable[[Message], Any]] = {
        "lambda": lambda message: caller.also("x", message),
        "object": caller,
        "method": caller.__call__,
        "partial": functools.partial(caller.also, "x"),
    }
    consumer = mq.consumer("orders", **GROUP)(handlers[kind])
    await mq.queue("orders").push_many("ab")
    task = asyncio.create_task(consumer.run())
    await until(lambda: len(seen) == 2, "both messages")
    await consumer.stop()
    await task
    assert (seen, await lag(mq.queue("orders"))) == (["a", "b"], {"Default": 0})


def test_the_synchronous_client_refuses_coroutine_functions(db: psycopg.Connection, module_database_url: str):
    """A coroutine function is refused at once; a handler that returns a coroutine fails its message."""

    async def handle(message: Message) -> None:
        raise AssertionError("nobody can call this")

    with Skep(module_database_url) as mq:
        with refused(InvalidArgument, "coroutine function"):
            mq.consumer("orders")(handle)
        mq.queue("orders").configure(retry_limit=0)
        mq.queue("orders").push("a")
        consumer = mq.consumer("orders")(lambda message: (handle(message), consumer.stop())[0])
        consumer.run()
        (letter,) = mq.dead_letters("orders")
    assert "returned a coroutine" in letter.error


PROGRAMS = {
    "sync": """
        from skep import Skep
        mq = Skep(URL)
        @mq.consumer("orders", group="g", batch=1)
        def handle(message):
            print(message.payload, flush=True)
            time.sleep(1)
        RUN()
    """,
    "async": """
        from skep import AsyncSkep
        async def main():
            mq = AsyncSkep(URL)
            @mq.consumer("orders", group="g", batch=1)
            async def handle(message):
                print(message.payload, flush=True)
                await asyncio.sleep(1)
            await RUN()
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("run", ["handle.run", "mq.run"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
async def test_an_interrupted_program_finishes_started_handlers(
    mq: AsyncSkep, db: psycopg.Connection, module_database_url: str, program: str, run: str
):
    """Ctrl-C: the handler ends, its ack is stored, and batches fetched ahead are released at once."""
    await mq.queue("orders").push("first", partition="one")
    await mq.queue("orders").push("second", partition="two")
    script = "import asyncio, time\n" + textwrap.dedent(program).replace("URL", repr(module_database_url))
    code, out, err = interrupted([sys.executable, "-c", script.replace("RUN", run)])
    assert (code, out, err.splitlines()[-1]) == (-signal.SIGINT, "first\n", "KeyboardInterrupt")
    assert leased(db) == 0
    rest = await drain(mq.queue("orders"))
    assert [(message.payload, message.attempt) for message in rest] == [("second", 1)]


def interrupted(command: list[str]) -> tuple[int, str, str]:
    """Run the program, press Ctrl-C after its first output, and return its exit code and its output."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    return process.returncode, first + out, err


async def test_a_program_without_a_stop_still_ends(mq: AsyncSkep, module_database_url: str):
    """The event loop ends while a consumer runs: its handler is cancelled, which is not a failure of the message."""
    await mq.queue("orders").push("a")
    script = f"""
        import asyncio
        from skep import AsyncSkep
        async def main():
            mq = AsyncSkep({module_database_url!r})
            begun = asyncio.Event()
            @mq.consumer("orders", group="g")
            async def handle(message):
                begun.set()
                await asyncio.sleep(60)
            task = asyncio.create_task(handle.run())
            await begun.wait()
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = await asyncio.to_thread(lambda: subprocess.run(command, timeout=30, check=False, capture_output=True))
    assert done.returncode == 0
    (message,) = await mq.queue("orders").pop(wait=40, **GROUP)
    assert (message.payload, message.attempt) == ("a", 1)
