"""Stop: started batches are finished and stored, others are released, and a second stop is harmless."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from skep import AsyncSkep, Message, NewMessage, SkepError
from skep.client.aio.consumer import AsyncConsumer
from skep.errors import InvalidArgument
from tests.client.verbs import drain, lag, leased, opened, payloads, refused, take, until
from tests.engine.verbs import broken

GROUP: Any = {"group": "g"}


class Gate:
    """A handler that ends when the test opens the gate."""

    def __init__(self, mq: AsyncSkep, queue: str = "orders", **options: Any) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.open = asyncio.Event()
        self.consumer = mq.consumer(queue, **GROUP, **options)(self._handler())

    def _handler(self) -> Callable[[Message], Any]:
        async def handle(message: Message) -> None:
            self.begun.append(message.payload)
            await opened(self.open)
            self.ended.append(message.payload)

        return handle

    async def begins(self, count: int = 1) -> None:
        await until(lambda: len(self.begun) >= count, f"{count} handlers to begin")


async def stopping(consumer: AsyncConsumer | AsyncSkep, gate: Gate) -> asyncio.Task[None]:
    """Call stop, and return when the consumer has received it."""
    task = asyncio.create_task(consumer.stop())
    driver: Any = getattr(gate.consumer, "plain", gate.consumer)._driver
    await until(lambda: driver._plan._stopping, "the stop to be heard")
    return task


async def test_started_batches_are_finished_and_stored(mq: AsyncSkep, db: psycopg.Connection):
    """Stop returns after that, and batches that were not started are released without an attempt."""
    q = mq.queue("orders")
    gate = Gate(mq, batch=2, concurrency=2, fetch_ahead=2)
    await q.push_many(
        [NewMessage((partition, n), f"partition {partition}") for partition in range(5) for n in range(2)]
    )
    running = asyncio.create_task(gate.consumer.run())
    await gate.begins(2)
    stop = await stopping(gate.consumer, gate)
    assert not stop.done()
    assert not running.done()
    gate.open.set()
    await stop
    await running
    assert sorted(gate.ended) == sorted(gate.begun)
    assert (len(gate.ended), leased(db)) == (4, 0)  # two batches of two
    rest = await drain(q)
    assert (len(rest), {message.attempt for message in rest}) == (6, {1})
    assert not {tuple(payload) for payload in payloads(rest)} & {tuple(payload) for payload in gate.ended}
    assert broken(db) == {}


async def test_nothing_is_leased_while_it_stops(mq: AsyncSkep):
    gate = Gate(mq)
    await mq.queue("orders").push("a")
    running = asyncio.create_task(gate.consumer.run())
    await gate.begins()
    stop = await stopping(gate.consumer, gate)
    await mq.queue("orders").push("b", partition="other")
    assert await take(mq.queue("orders")) == ["b"]
    gate.open.set()
    await asyncio.gather(stop, running)
    assert gate.begun == ["a"]


async def test_all_consumers_of_a_client_stop_before_one_is_awaited(mq: AsyncSkep):
    """The first one works for a long time; the others lease nothing meanwhile."""
    slow, quick = Gate(mq, "slow"), Gate(mq, "quick")
    await mq.queue("slow").push("a")
    running = asyncio.create_task(mq.run())
    await slow.begins()
    quick.open.set()
    stop = await stopping(mq, slow)
    quick_one: Any = getattr(quick.consumer, "plain", quick.consumer)
    await until(lambda: quick_one._driver is None, "the second to have ended")
    await mq.queue("quick").push("b")
    assert await take(mq.queue("quick")) == ["b"]
    slow.open.set()
    await asyncio.gather(stop, running)
    assert (slow.ended, quick.begun) == (["a"], [])


async def test_a_lease_is_extended_while_it_stops(mq: AsyncSkep, db: psycopg.Connection):
    """The handler needs longer than its lease; its message is not delivered again."""
    gate = Gate(mq, lease_time=0.3)
    await mq.queue("orders").push("a")
    running = asyncio.create_task(gate.consumer.run())
    await gate.begins()
    stop = await stopping(gate.consumer, gate)
    deadline = db.execute("SELECT max(expires_at) FROM skep.leases").fetchall()[0][0]
    over = "SELECT clock_timestamp() > %s + interval '0.5 s'"
    await until(lambda: db.execute(over, [deadline]).fetchall()[0][0], "the lease to be over, were it not extended")
    gate.open.set()
    await asyncio.gather(stop, running)
    assert await lag(mq.queue("orders")) == {"Default": 0}


async def test_the_second_stop_is_harmless(mq: AsyncSkep):
    """At the same time or later, by the consumer or the client."""
    gate = Gate(mq)
    await mq.queue("orders").push("a")
    running = asyncio.create_task(gate.consumer.run())
    await gate.begins()
    stops = [await stopping(gate.consumer, gate) for _ in range(2)]
    stops.append(await stopping(mq, gate))
    assert not any(stop.done() for stop in stops)
    gate.open.set()
    await asyncio.gather(*stops, running)
    await gate.consumer.stop()
    await mq.stop()


async def test_stop_of_a_consumer_that_never_ran_does_nothing(mq: AsyncSkep):
    gate = Gate(mq)
    await gate.consumer.stop()
    await mq.stop()
    gate.open.set()
    await mq.queue("orders").push("a")
    running = asyncio.create_task(gate.consumer.run())
    await gate.begins()
    await gate.consumer.stop()
    await running
    assert gate.ended == ["a"]


async def test_a_consumer_can_run_again(mq: AsyncSkep, db: psycopg.Connection):
    """It continues at its cursor."""
    gate = Gate(mq)
    gate.open.set()
    for number in range(3):
        await mq.queue("orders").push(number)
        running = asyncio.create_task(gate.consumer.run())
        await gate.begins(number + 1)
        await gate.consumer.stop()
        await running
    assert (gate.ended, broken(db)) == ([0, 1, 2], {})


async def test_running_twice_at_once_is_an_error(mq: AsyncSkep):
    """Exactly one run continues."""
    gate = Gate(mq)
    gate.open.set()
    runs = [asyncio.create_task(gate.consumer.run()) for _ in range(5)]
    await until(lambda: sum(run.done() for run in runs) == 4, "four to be refused")
    (winner,) = (run for run in runs if not run.done())
    for run in runs:
        if run is not winner:
            with refused(SkepError, "is already running"):
                await run
    await mq.queue("orders").push("a")
    await gate.begins()
    await gate.consumer.stop()
    await winner


async def test_a_handler_may_stop_its_own_consumer(mq: AsyncSkep):
    """Stop returns at once, because it cannot wait for itself; the rest of its batch is still handled."""
    seen = []

    @mq.consumer("orders", **GROUP)
    async def handle(message: Message) -> None:
        seen.append(message.payload)
        await handle.stop()

    await mq.queue("orders").push_many("ab")
    await handle.run()
    assert (seen, await lag(mq.queue("orders"))) == (["a", "b"], {"Default": 0})


async def test_closing_the_client_stops_its_consumers(clients: Callable[..., AsyncSkep], db: psycopg.Connection):
    mq = clients()
    gate = Gate(mq)
    await mq.queue("orders").push("a")
    running = asyncio.create_task(mq.run())
    await gate.begins()
    closing = asyncio.create_task(mq.close())
    gate.open.set()
    await asyncio.gather(closing, running)
    assert (gate.ended, leased(db)) == (["a"], 0)


async def test_an_error_of_one_consumer_ends_the_run_of_all(mq: AsyncSkep):
    """The others finish their started batches, and the error is raised."""
    gate = Gate(mq, "fine")
    mq.consumer("bad", group="")(print)
    await mq.queue("fine").push("a")
    running = asyncio.create_task(mq.run())
    gate.open.set()
    with refused(InvalidArgument, "group"):
        await running
    assert gate.begun == gate.ended


async def test_a_client_without_consumers_has_nothing_to_run(mq: AsyncSkep):
    await mq.run()
    await mq.stop()


async def test_stop_from_another_thread_or_task_while_all_handlers_are_busy(mq: AsyncSkep):
    """Many handlers are busy, and all of them finish."""
    begun, ended = [], []
    lock = threading.Lock()
    gate = threading.Event()

    @mq.consumer("orders", batch=1, concurrency=8, **GROUP)
    def handle(message: Message) -> None:
        with lock:
            begun.append(message.payload)
        gate.wait(20)
        with lock:
            ended.append(message.payload)

    await mq.queue("orders").push_many([NewMessage(n, f"partition {n}") for n in range(20)])
    running = asyncio.create_task(handle.run())
    await until(lambda: len(begun) == 8, "eight handlers to begin")
    stop = asyncio.create_task(handle.stop())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(stop, running)
    assert sorted(begun) == sorted(ended)
    assert len(await drain(mq.queue("orders"))) == 20 - len(ended)
