"""Consumers of a group: how they start, stop, fail, hang and lose their connection (scenarios 23 to 26, 36 to 41)."""

import asyncio
import functools
import logging
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from skep import AsyncSkep, Message, NewMessage, Skep
from skep.client.sync.consumer import Consumer
from skep.errors import DatabaseUnavailable, PermissionDenied, SkepError
from tests.client.verbs import PATIENCE, dead, lag, leased, payloads, refused, take, until
from tests.engine.verbs import broken, pass_time
from tests.fanout.groups import Q, fan_out, run_until, subscribe

Clients = Callable[..., AsyncSkep]


class Gate:
    """A handler that waits in the middle of its work until the test opens it."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.done: list[Any] = []
        self.open = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        self.begun.append(message.payload)
        await self.open.wait()
        self.done.append(message.payload)

    def handler(self) -> Callable[[Message], Any]:
        async def handle(message: Message) -> None:
            await self(message)

        return handle


async def test_a_graceful_stop(mq: AsyncSkep, db: psycopg.Connection):
    """A running handler finishes and its ack is stored before stop returns.

    Prefetched messages are released (scenario 23).
    """
    q, gate = mq.queue(Q), Gate()
    await q.push_many([NewMessage(partition, partition) for partition in "ab"])
    consumer = mq.consumer(Q, group="g", batch=1)(gate.handler())
    running = asyncio.create_task(consumer.run())
    await until(lambda: gate.begun, "a handler at work")
    stops = [asyncio.create_task(consumer.stop()) for _ in range(2)]
    await asyncio.wait(stops, timeout=0.05)
    assert not any(stop.done() for stop in stops)
    gate.open.set()
    await asyncio.gather(*stops, running)
    assert (len(gate.done), leased(db)) == (1, 0)
    assert sum((await lag(q)).values()) == 1
    await consumer.stop()
    await mq.stop()
    rest = await q.pop(group="g")
    assert (rest[0].attempt, {*payloads(rest), *gate.done}) == (1, {"a", "b"})


async def test_stop_of_a_consumer_that_never_ran(mq: AsyncSkep):
    """It does nothing, any number of times; the same for close (scenario 23)."""
    consumer = mq.consumer(Q, group="g")(Gate().handler())
    for stop in (consumer.stop, consumer.stop, mq.stop, mq.close, mq.close, consumer.stop):
        await stop()


@pytest.mark.parametrize("change", ["cancel", "delete"])
async def test_a_stop_while_its_group_is_deleted(mq: AsyncSkep, db: psycopg.Connection, change: str):
    """The ack is too late and the release is refused, but stop returns and nothing is left behind (scenario 24)."""
    gate = Gate()
    await mq.queue(Q).push_many([NewMessage(partition, partition) for partition in "ab"])
    consumer = mq.consumer(Q, group="g", batch=1)(gate.handler())
    running = asyncio.create_task(consumer.run())
    await until(lambda: leased(db) == 2, "one handler at work and one batch ahead")
    await (mq.cancel("g", Q) if change == "cancel" else mq.queue(Q).delete())
    stopped = asyncio.create_task(consumer.stop())
    gate.open.set()
    await stopped
    await asyncio.gather(running, return_exceptions=True)  # it may have noticed the end of its group first
    assert (leased(db), broken(db)) == (0, {})


async def test_a_stop_without_rights(clients: Clients, user_url: Callable[..., str], db: psycopg.Connection):
    """Nothing can be stored or released any more; stop still returns, and run raises the reason (scenario 24)."""
    url, gate = user_url("skep_consumer"), Gate()
    mq = clients(url)
    db.execute("SELECT skep.push('orders', '1')")
    consumer = mq.consumer(Q, group="g")(gate.handler())
    running = asyncio.create_task(consumer.run())
    await until(lambda: gate.begun, "a handler at work")
    user = sql.Identifier(str(conninfo_to_dict(url)["user"]))
    db.execute(sql.SQL("REVOKE skep_consumer FROM {}").format(user))
    stopped = asyncio.create_task(consumer.stop())
    gate.open.set()
    await stopped
    with refused(PermissionDenied):
        await running


async def test_starting_twice(mq: AsyncSkep):
    """Exactly one runs, the others raise an error.

    It can start again after a stop, but not after close (scenario 25).
    """
    gate = Gate()
    gate.open.set()
    await mq.queue(Q).push("a")
    consumer = mq.consumer(Q, group="g")(gate.handler())
    runs = [asyncio.create_task(consumer.run()) for _ in range(4)]
    await until(lambda: gate.done, "the one that runs to work")
    await until(lambda: sum(run.done() for run in runs) == 3, "the others to be refused")
    await consumer.stop()
    outcomes = [str(outcome) for outcome in await asyncio.gather(*runs, return_exceptions=True)]
    assert Counter("already running" in outcome for outcome in outcomes) == {True: 3, False: 1}
    await mq.queue(Q).push("b")
    await run_until(mq, consumer)
    assert gate.done == ["a", "b"]
    await mq.close()
    with refused(SkepError, "closed"):
        await consumer.run()


def test_two_threads_start_at_once(database_url: str):
    """Exactly one of them runs (scenario 25)."""
    together = threading.Barrier(4)

    def start(consumer: Consumer) -> str:
        together.wait()
        try:
            consumer.run()
        except SkepError as error:
            return error.message
        return "ran"

    with Skep(database_url, poll_interval=0.05) as mq, ThreadPoolExecutor(4) as pool, hasty_threads():
        for _ in range(20):
            consumer = mq.consumer(Q, group="g")(print)
            runs = [pool.submit(start, consumer) for _ in range(4)]
            deadline = monotonic() + PATIENCE
            while sum(run.done() for run in runs) < 3 and monotonic() < deadline:
                wait(runs, 0.01)
            while not all(run.done() for run in runs):
                threading.Thread(target=consumer.stop, daemon=True).start()
                wait(runs, 0.01)
            assert Counter(run.result() for run in runs) == {"ran": 1, "consumer print is already running": 3}


@contextmanager
def hasty_threads() -> Generator[None]:
    """Make threads switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


async def test_consumers_join_and_leave(clients: Clients, db: psycopg.Connection):
    """Members have no names that could clash.

    Each message goes to one of them, and one that left gets nothing more (scenario 26).
    """
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    members = [clients(poll_interval=0.05) for _ in seen]
    runs = []
    for number, member in enumerate(members):

        async def handler(message: Message, number: int = number) -> None:
            seen[number].append(message.payload)

        runs.append(asyncio.create_task(member.consumer(Q, group="g", batch=1)(handler).run()))
    q = members[0].queue(Q)
    for number in range(60):
        await q.push(number, partition=str(number % 6))
    await until(lambda: sum(map(len, seen.values())) == 60, "sixty messages")
    await members[1].stop()
    left = len(seen[1])
    for number in range(60, 90):
        await q.push(number, partition=str(number % 6))
    await until(lambda: sum(map(len, seen.values())) == 90, "the rest")
    for member in members:
        await member.stop()
    await asyncio.gather(*runs)
    assert len(seen[1]) == left
    assert sorted(n for numbers in seen.values() for n in numbers) == list(range(90))
    assert broken(db) == {}


class Callback:
    async def __call__(self, message: Message) -> None:
        raise ValueError("later")


async def fails_later(message: Message) -> None:
    await asyncio.sleep(0)
    raise ValueError("later")


def fails_at_once(message: Message) -> None:
    raise ValueError("at once")


def promises(message: Message) -> Awaitable[None]:
    return fails_later(message)


def takes_nothing() -> None: ...


HANDLERS: list[tuple[Any, str]] = [
    (fails_at_once, "ValueError: at once"),
    (fails_later, "ValueError: later"),
    (functools.partial(fails_later), "ValueError: later"),
    (promises, "ValueError: later"),
    (Callback(), "ValueError: later"),
    (takes_nothing, "TypeError: "),
]


@pytest.mark.parametrize(("handler", "error"), HANDLERS)
async def test_every_way_a_handler_can_fail(module_database_url: str, db: psycopg.Connection, handler: Any, error: str):
    """Before, during or after it returns: its message fails, and its slot is free for the next (scenario 36)."""
    async with AsyncSkep(module_database_url, poll_interval=0.05) as mq:
        await mq.queue(Q).configure(retry_limit=0)
        await mq.queue(Q).push_many("ab")
        await run_until(mq, mq.consumer(Q, group="g", batch=1)(handler))
        errors = await dead(mq, Q)
        assert list(errors) == [1, 0]
        assert [text for text in errors.values() if not text.startswith(error)] == []


@pytest.mark.parametrize("handler", [promises, Callback()])
def test_a_handler_that_needs_an_event_loop(database_url: str, handler: Any):
    """The synchronous client has none, and raises an error instead of losing the message (scenario 36)."""
    with Skep(database_url, poll_interval=0.05) as mq:
        mq.queue(Q).configure(retry_limit=0)
        mq.queue(Q).push("a")
        consumer = mq.consumer(Q, group="g")(handler)
        runner = threading.Thread(target=consumer.run)
        runner.start()
        while not any(partition.cursor for partition in mq.lag("g", Q)):
            runner.join(0.01)
        consumer.stop()
        runner.join()
        assert ["AsyncSkep" in dead_letter.error for dead_letter in mq.dead_letters(Q)] == [True]


async def test_a_handler_that_returns_nothing_has_succeeded(mq: AsyncSkep):
    """A Python function without a return statement returns None (scenario 36)."""
    await mq.queue(Q).push_many("ab")
    await run_until(mq, mq.consumer(Q, group="g")(lambda message: None))
    assert await dead(mq, Q) == {}


async def test_one_bad_message(mq: AsyncSkep):
    """It does not stop the rest of its batch, nor later messages (scenario 37)."""
    await mq.queue(Q).push_many(range(10))
    seen = []

    async def handler(message: Message) -> None:
        seen.append(message.payload)
        if message.payload == 3:
            raise ValueError("not 3")

    await run_until(mq, mq.consumer(Q, group="g", batch=5)(handler))
    assert (seen, await dead(mq, Q)) == (list(range(10)), {3: "ValueError: not 3"})


async def test_a_hung_handler(mq: AsyncSkep, db: psycopg.Connection):
    """Its partition is fetched by no other consumer, other partitions continue, and health reports it (scenario 38)."""
    q, gate, quick = mq.queue(Q), Gate(), []
    await q.push_many([NewMessage(n, "hung") for n in range(3)])

    async def handler(message: Message) -> None:
        if message.partition == "hung":
            await gate(message)
        quick.append(message.payload)

    running = asyncio.create_task(mq.consumer(Q, group="g", batch=1, concurrency=2)(handler).run())
    await until(lambda: gate.begun, "the handler to hang")
    pass_time(db, 20)
    await q.push_many([NewMessage(n, "free") for n in "abc"])
    await until(lambda: quick == ["a", "b", "c"], "the other partition")
    assert len(await q.pop(group="g", partition="hung")) == 0
    await until(lambda: leased(db) == 1, "the other partition's answers")
    (health,) = await mq.groups("g", Q)
    assert (health.leased, health.lag, health.processed) == (1, 3, 3)
    (blocked,) = await mq.pending_groups(Q)
    assert (blocked.partition, blocked.leased, blocked.pending, blocked.is_floor) == ("hung", 1, 3, True)
    assert blocked.oldest_pending_at == health.oldest_pending_at is not None
    gate.open.set()
    await until(lambda: len(quick) == 6, "the partition to go on")
    await mq.stop()
    await running
    assert (gate.done, await dead(mq, Q)) == ([0, 1, 2], {})


async def test_connections_are_killed_while_handlers_work(mq: AsyncSkep, db: psycopg.Connection):
    """The consumer recovers by itself; nothing is lost. Under load: `tests/faults` (scenario 39)."""
    await mq.queue(Q).push_many(range(40))
    done: list[int] = []

    async def handler(message: Message) -> None:
        done.append(message.payload)
        if message.payload % 10 == 5:
            query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'skep'"
            db.execute(query + " AND datname = current_database()")

    consumer = mq.consumer(Q, group="g", batch=4)(handler)
    running = asyncio.create_task(consumer.run())
    await until(lambda: set(done) == set(range(40)), "every message")
    await consumer.stop()
    await running
    assert (await lag(mq.queue(Q)), await dead(mq, Q), broken(db)) == ({"Default": 0}, {}, {})


async def test_no_free_connection_at_the_start(clients: Clients, user_url: Callable[..., str], db: psycopg.Connection):
    """The block is not entered, there is no silent fallback, and the error says why (scenario 40)."""
    url = user_url("skep_consumer")
    user = sql.Identifier(str(conninfo_to_dict(url)["user"]))
    db.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT 0").format(user))
    with refused(DatabaseUnavailable, "too many connections"):
        async with clients(url, timeout=0.5):
            raise AssertionError("there is no connection")


async def test_the_pool_is_exhausted(clients: Clients, db: psycopg.Connection, module_database_url: str):
    """A call that gets no connection in time fails with a retryable error (scenario 40)."""
    mq = clients(pool_size=1, timeout=0.3)
    await mq.subscribe("g", Q)
    with psycopg.connect(module_database_url) as other:
        other.execute("SELECT FROM skep.subscriptions FOR UPDATE")
        busy = asyncio.create_task(mq.pause("g", Q))
        await until(lambda: waiting(db) == 1, "the only connection to be in use")
        with refused(DatabaseUnavailable) as caught:
            await mq.queue(Q).push("a")
        assert caught.error.retryable
    assert len(await busy) == 1
    await mq.queue(Q).push("a")


def waiting(db: psycopg.Connection) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return db.execute(query).fetchall()[0][0]


async def test_a_filter_of_one_group(mq: AsyncSkep, caplog: pytest.LogCaptureFixture):
    """A message that one group rejects is not done for others.

    A filter that raises counts attempts, then dead-letters (scenario 41).
    """
    caplog.set_level(logging.CRITICAL, "skep")
    q = mq.queue(Q)
    await q.configure(retry_limit=2, retry_delay=0, partial_failure="retry")
    await subscribe(mq, "picky", "plain")
    await q.push_many(["good", "bad"])

    async def picky(message: Message) -> None:
        if {"good": True}[message.payload]:
            return

    await run_until(mq, mq.consumer(Q, group="picky")(picky), "picky")
    assert [
        (dead_letter.payload, dead_letter.error, dead_letter.attempts, dead_letter.group)
        for dead_letter in await mq.dead_letters(Q)
    ] == [("bad", "KeyError: 'bad'", 3, "picky")]
    assert await fan_out(mq) == [(2, 1, ["plain"])] * 2
    assert await take(q, "plain") == ["good", "bad"]


async def test_a_circuit_breaker(mq: AsyncSkep):
    """While it is open a consumer releases what it gets, and no attempt is counted (scenario 41)."""
    q = mq.queue(Q)
    await q.configure(retry_limit=1)
    await q.push("a")
    for _ in range(10):
        batch = await q.pop(group="g")
        assert batch[0].attempt == 1
        await batch.release()
    assert (await dead(mq, Q), await take(q)) == ({}, ["a"])
