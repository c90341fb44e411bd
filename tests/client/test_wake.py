"""Waking waiting consumers: by the same client, by another one (NOTIFY), and by polling."""

import asyncio
import time
from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from skep import AsyncSkep
from skep.client.aio.wake import AsyncWaiter
from skep.client.plan import Backoff
from skep.client.sync.wake import Waiter
from tests.client.verbs import payloads, until

Clients = Callable[..., AsyncSkep]
AT_ONCE = 0.15  # seconds, of the fastest of some tries, on a busy machine
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN skep'"


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting pop polls once, and again only when it is woken."""
    monkeypatch.setattr(Backoff, "pause", lambda self, left: left)


def listeners(db: psycopg.Connection) -> int:
    return db.execute(LISTENERS).fetchall()[0][0]


async def waiting(mq: AsyncSkep, db: psycopg.Connection, **options: object) -> asyncio.Task:
    """Start a pop that finds nothing, and return when it has polled and its client listens."""
    task = asyncio.create_task(mq.pop(**{"queue": "orders", "group": "g", "wait": 20, **options}))  # pyright: ignore[reportArgumentType]
    await until(lambda: listeners(db) == 1, "the client to listen")
    looked = "SELECT count(*) FROM skep.subscriptions"
    await until(lambda: db.execute(looked).fetchall() == [(1,)], "the first look")
    return task


async def how_long(task: asyncio.Task, push: Callable[[], object]) -> float:
    began = time.monotonic()
    pushed = push()
    if asyncio.iscoroutine(pushed):
        await pushed
    batch = await task
    elapsed = time.monotonic() - began
    assert payloads(batch) == ["x"]
    await batch.ack()
    return elapsed


@pytest.mark.usefixtures("no_polling")
async def test_a_push_of_the_same_client_wakes_at_once(clients: Clients, db: psycopg.Connection):
    """Within milliseconds."""
    mq = clients()
    best = min([await how_long(await waiting(mq, db), lambda: mq.queue("orders").push("x")) for _ in range(3)])
    assert best < AT_ONCE


@pytest.mark.usefixtures("no_polling")
async def test_a_push_of_another_client_wakes_at_once(clients: Clients, db: psycopg.Connection):
    """By NOTIFY, which is sent after the push and not in its transaction."""
    mq, other = clients(), clients()
    best = min([await how_long(await waiting(mq, db), lambda: other.queue("orders").push("x")) for _ in range(3)])
    assert best < AT_ONCE


@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("how", ["push_many", "transaction", "buffer"])
async def test_every_way_to_push_wakes(clients: Clients, db: psycopg.Connection, how: str):
    mq, other = clients(), clients()
    task = await waiting(mq, db)
    if how == "push_many":
        await other.queue("orders").push_many(["x"])
    elif how == "transaction":
        async with other.transaction() as tx:
            tx.push("orders", "x")
    else:
        async with other.queue("orders").buffer() as buffer:
            await buffer.push("x")
    assert payloads(await task) == ["x"]


@pytest.mark.usefixtures("no_polling")
async def test_a_pop_of_a_namespace_is_woken(clients: Clients, db: psycopg.Connection):
    mq, other = clients(), clients()
    task = await waiting(mq, db, queue=None, namespace="shop")
    await other.queue("shop.mail").push("x")
    assert payloads(await task) == ["x"]


@pytest.mark.usefixtures("no_polling")
async def test_a_push_to_another_queue_wakes_no_consumer(
    clients: Clients, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
):
    """Its notification arrives first, because notifications have the order of the commits."""
    woken: list[object] = []
    for kind in (AsyncWaiter, Waiter):
        monkeypatch.setattr(kind, "wake", lambda self: (woken.append(self), self.woken.set()))
    mq, other = clients(), clients()
    task = await waiting(mq, db)
    await until(lambda: len(woken) == 1, "the wake-up that follows LISTEN")
    await other.queue("elsewhere").push("y")
    await other.close()  # so that its NOTIFY is sent
    await clients().queue("orders").push("x")
    assert payloads(await task) == ["x"]
    assert len(woken) == 2


@pytest.mark.usefixtures("no_polling")
async def test_one_push_wakes_all_waiting_groups(clients: Clients, db: psycopg.Connection):
    """Each group gets the message."""
    mq = clients()
    await waiting(mq, db, group="first", wait=0.01)
    tasks = [asyncio.create_task(mq.queue("orders").pop(group=f"g{n}", wait=20)) for n in range(8)]
    looked = "SELECT count(*) FROM skep.subscriptions"
    await until(lambda: db.execute(looked).fetchall() == [(9,)], "all of them to look")
    await mq.queue("orders").push("x")
    assert [payloads(await task) for task in tasks] == [["x"]] * 8


async def test_polling_finds_messages_without_a_notification(clients: Clients, db: psycopg.Connection):
    """An INSERT into the outbox sends no notification, so only polling finds the message."""
    mq = clients(poll_interval=0.1)
    task = await waiting(mq, db)
    db.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('orders', '\"x\"')")
    assert payloads(await task) == ["x"]


async def test_consumers_poll_while_they_cannot_listen(clients: Clients, db: psycopg.Connection):
    """The listening connection is killed; consumers poll until it is back."""
    mq = clients(poll_interval=0.1)
    task = await waiting(mq, db)
    kill = f"SELECT pg_terminate_backend(pid) FROM ({LISTENERS.replace('count(*)', 'pid')}) l"
    assert db.execute(sql.SQL(kill)).fetchall() == [(True,)]  # pyright: ignore[reportArgumentType]
    db.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('orders', '\"x\"')")
    assert payloads(await task) == ["x"]


@pytest.mark.usefixtures("no_polling")
@pytest.mark.parametrize("noise", ["", "null", "[]", "{", '{"queues": 5}', '{"origin": "x", "queues": [1]}', "🐝"])
async def test_foreign_notifications_do_no_harm(clients: Clients, db: psycopg.Connection, noise: str):
    """Other programs may use the channel: the listener survives, and receives the next real notification."""
    mq, other = clients(), clients()
    task = await waiting(mq, db)
    db.execute("SELECT pg_notify('skep', %s)", [noise])
    await other.queue("orders").push("x")
    assert payloads(await task) == ["x"]


@pytest.mark.usefixtures("no_polling")
async def test_more_names_than_a_notification_can_hold(clients: Clients, db: psycopg.Connection):
    """Then it names none, and all consumers poll."""
    mq, other = clients(), clients()
    task = await waiting(mq, db)
    async with other.transaction() as tx:
        for number in range(100):
            tx.push(f"{'long name ' * 20}{number}", number)
        tx.push("orders", "x")
    assert payloads(await task) == ["x"]


async def test_closing_ends_the_listener_at_once(clients: Clients, db: psycopg.Connection):
    mq = clients()
    task = await waiting(mq, db, wait=0.01)
    await task
    began = time.monotonic()
    await mq.close()
    assert time.monotonic() - began < 1
    await until(lambda: listeners(db) == 0, "the listening connection to be gone")
