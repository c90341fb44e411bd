"""Waiting for messages: woken at once, at next to no cost, and gone without a trace."""

import asyncio
import json
import socket
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from skep.server.queen.pop import QueenWaiters
from skep.server.work.waiters import Waiters
from tests.server.serving import Client, client, in_thread, serving, until

__all__ = ["client", "in_thread"]

Threads = Callable[..., Any]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HOST = b"Host: skep\r\n\r\n"


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def other(module_database_url: str) -> Generator[Client]:
    """A second server of the same database."""
    with serving(module_database_url) as running:
        yield running


def waiters(client: Client) -> Waiters[Any]:
    return client.app.state.part(QueenWaiters).waiters


def parked(client: Client) -> int:
    """Return how many wait for a push, and not for the database."""
    return sum(len(each.waiting) for each in list(waiters(client)._lists.values()) if each.task is None)


def poll(client: Client, queue: str, **query: Any) -> tuple[list[dict[str, Any]], float]:
    """Wait for messages; return them and when they came."""
    messages = client.pop(queue, **{"wait": "true", "timeout": 10_000, **query})
    return messages, time.monotonic()


@contextmanager
def polling(client: Client, queue: str, query: str = "") -> Generator[socket.socket]:
    """A client that is parked, and can go away."""
    before = parked(client)
    with socket.create_connection(("127.0.0.1", client.port), timeout=15) as connection:
        path = f"/api/v1/pop/queue/{queue}?wait=true&timeout=20000{query}"
        connection.sendall(f"GET {path} HTTP/1.1\r\n".encode() + HOST)
        until(lambda: parked(client) == before + 1)
        yield connection


def leases(db: psycopg.Connection, queue: str) -> int:
    ((count,),) = db.execute(
        """SELECT count(*) FROM skep.leases s JOIN skep.partitions p ON p.id = s.partition_id
           JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = %s""",
        [queue],
    ).fetchall()
    return count


def wake_times(pusher: Client, waiter: Client, queue: str, in_thread: Threads, rounds: int) -> list[float]:
    """Return the seconds from the beginning of a push until a parked poll has its message."""
    waiter.push(queue, "first")
    waiter.pop(queue, autoAck="true")
    times: list[float] = []
    for number in range(rounds):
        waiting = in_thread(poll, waiter, queue, autoAck="true")
        until(lambda: parked(waiter) == 1)
        time.sleep(0.06)  # past the pause between two NOTIFYs
        begun = time.monotonic()
        pusher.push(queue, number)
        ((message,), came) = waiting.result()
        assert message["data"] == number
        times.append(came - begun)
    return times


def test_a_push_wakes_a_poll_of_its_server(client: Client, queue: str, in_thread: Threads):
    times = wake_times(client, client, queue, in_thread, 30)
    print(f"\nwoken after {statistics.median(times) * 1000:.1f} ms, at most {max(times) * 1000:.1f} ms")
    assert statistics.median(times) < 0.1


def test_a_push_wakes_a_poll_of_another_server(client: Client, other: Client, queue: str, in_thread: Threads):
    times = wake_times(client, other, queue, in_thread, 20)
    print(f"\nwoken elsewhere after {statistics.median(times) * 1000:.1f} ms, at most {max(times) * 1000:.1f} ms")
    assert statistics.median(times) < 0.3


def test_polls_of_a_namespace_are_woken(client: Client, other: Client, queue: str, in_thread: Threads):
    for pusher in (client, other):
        path = f"/api/v1/pop?namespace={queue}&wait=true&timeout=10000&autoAck=true"
        waiting = in_thread(client.get, path)
        until(lambda: parked(client) == 1)
        begun = time.monotonic()
        pusher.push(f"{queue}.task.{pusher.port}", 1)
        assert [message["data"] for message in waiting.result().json["messages"]] == [1]
        assert time.monotonic() - begun < 0.8, "before the server looked by itself"


def test_polls_are_answered_when_their_time_is_up(client: Client, queue: str, in_thread: Threads):
    client.push(queue, 1, partition="other")
    begun = time.monotonic()
    waiting = [in_thread(poll, client, f"{queue}-{number}", timeout=300 + 100 * number) for number in range(5)]
    took = [came - begun for messages, came in (future.result() for future in waiting) if not messages]
    assert all(0.29 + 0.1 * number < seconds < 1.5 for number, seconds in enumerate(took))
    assert len(took) == 5
    assert parked(client) == 0


def test_a_wait_with_auto_ack(client: Client, db: psycopg.Connection, queue: str, in_thread: Threads):
    waiting = in_thread(poll, client, queue, autoAck="true")
    until(lambda: parked(client) == 1)
    client.push(queue, 1)
    ((message,), _) = waiting.result()
    assert (message["data"], message["leaseId"]) == (1, "")
    assert leases(db, queue) == 0
    assert client.pop(queue) == []


def test_what_becomes_ready_by_itself_wakes_too(client: Client, db: psycopg.Connection, queue: str, in_thread: Threads):
    """A lease that ends is nobody's push."""
    client.push(queue, 1)
    assert client.pop(queue, leaseSeconds=1)
    ((message,), _) = poll(client, queue, timeout=5000)
    assert message["deliveryAttempt"] == 2


def test_who_goes_away_takes_nothing(client: Client, db: psycopg.Connection, queue: str):
    with polling(client, queue):
        pass
    until(lambda: parked(client) == 0)
    client.push(queue, 1)
    (message,) = client.pop(queue)
    assert message["deliveryAttempt"] == 1
    assert leases(db, queue) == 1


@pytest.mark.parametrize("wait", ["true", "false"])
def test_who_goes_away_while_it_is_served_gives_back(
    client: Client, db: psycopg.Connection, module_database_url: str, queue: str, wait: str
):
    """The connection ends while the database delivers, also to one who does not wait."""
    client.push(queue, 1)
    with psycopg.connect(module_database_url) as lock:
        lock.execute("LOCK TABLE skep.runs IN EXCLUSIVE MODE")
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(f"GET /api/v1/pop/queue/{queue}?wait={wait} HTTP/1.1\r\n".encode() + HOST)
            until(lambda: db.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
        time.sleep(0.1)  # the server hears of it, and cannot do anything yet
    (message,) = until(lambda: client.pop(queue), 3)
    assert message["deliveryAttempt"] == 1
    assert leases(db, queue) == 1


def test_who_goes_away_at_the_moment_of_delivery_gives_back(client: Client, db: psycopg.Connection, queue: str):
    """In the very turn of the loop in which the messages come."""
    lines = waiters(client)
    deal = lines._hand_out
    with polling(client, queue) as connection:

        def hang_up(requests: Any, popped: Any) -> Any:
            if popped:
                connection.close()
                lines._hand_out = deal
                time.sleep(0.05)  # the loop stands still, and then finds the end and the messages at once
            return deal(requests, popped)

        lines._hand_out = hang_up
        client.push(queue, 1)
        (message,) = until(lambda: client.pop(queue), 3)
    assert message["deliveryAttempt"] == 1
    assert leases(db, queue) == 1


def test_two_who_wait_take_turns(client: Client, queue: str, in_thread: Threads):
    """Whoever waits longest is next; one push is for one of them."""
    served: list[str] = []

    def consume(name: str) -> None:
        while messages := poll(client, queue, autoAck="true", batch=1)[0]:
            served.append(name)
            if messages[0]["data"] == "end":
                return

    consumers = [in_thread(consume, name) for name in "ab"]
    for number in range(20):
        until(lambda: parked(client) == 2)
        client.push(queue, number)
        until(lambda number=number: len(served) == number + 1)
    client.push(queue, "end", "end")
    assert all(consumer.result() is None for consumer in consumers)
    assert served[:20] in (list("ab" * 10), list("ba" * 10))


async def test_polls_of_different_partitions_are_one_call(client: Client, queue: str):
    """Each gets the partition it names; those whose partition has nothing go on waiting."""
    client.push(queue, "old", partition="other")
    async with connected(client, 100) as connections:
        for number, (_, writer) in enumerate(connections):
            path = f"/api/v1/pop/queue/{queue}/partition/p{number}?wait=true&timeout=20000&autoAck=true"
            writer.write(f"GET {path} HTTP/1.1\r\n".encode() + HOST)
        await asyncio.to_thread(until, lambda: parked(client) == 100, 20)
        assert len(waiters(client)._lists) == 1
        calls = count_calls(client)
        items = [{"queue": queue, "partition": f"p{number}", "payload": number} for number in range(90)]
        assert (await asyncio.to_thread(client.post, "/api/v1/push", {"items": items})).status == 201
        for number in range(90):
            assert await payloads(connections[number]) == [number]
        assert len(calls) < 20
        for number in range(90, 100):
            await asyncio.to_thread(client.push, queue, number, partition=f"p{number}")
            assert await payloads(connections[number]) == [number]


async def payloads(connection: Streams) -> list[Any]:
    answer = await asyncio.wait_for(answer_of(connection[0]), 10)
    return [message["data"] for message in answer["messages"]]


def test_who_goes_away_gives_several_partitions_back(client: Client, db: psycopg.Connection, queue: str):
    with polling(client, queue, "&partitions=3&batch=9") as connection:
        lines = waiters(client)
        deal = lines._hand_out

        def hang_up(requests: Any, popped: Any) -> Any:
            if popped:
                connection.close()
                lines._hand_out = deal
                time.sleep(0.05)
            return deal(requests, popped)

        lines._hand_out = hang_up
        items = [{"queue": queue, "partition": f"p{number}", "payload": number} for number in range(3)]
        client.post("/api/v1/push", {"items": items})
        until(lambda: lines._hand_out is not hang_up and leases(db, queue) == 0, 3)
    assert sorted((m["data"], m["deliveryAttempt"]) for m in client.pop(queue, partitions=3)) == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


async def test_thousands_who_wait_cost_next_to_nothing(database_url: str):
    """2,000 polls of 2,000 queues, half of which exist: one look a second, whatever their number."""
    with serving(database_url) as client:
        items = [{"queue": f"q{number}", "payload": 0} for number in range(1000)]
        assert client.post("/api/v1/push", {"items": items}).status == 201
        async with connected(client, 2000) as connections:
            ask(connections)
            for reader, _ in connections[:1000]:
                await answer_of(reader)
            ask(connections[:1000])
            await asyncio.to_thread(until, lambda: parked(client) == 2000, 60)
            await asyncio.sleep(1.2)  # whatever that made due is looked at
            calls = count_calls(client)
            await asyncio.sleep(3)
            print(f"\n{len(calls)} calls in 3 s")
            assert len(calls) < 20
            for number in (0, 999, 1000, 1999):
                await asyncio.to_thread(client.push, f"q{number}", number)
                answer = await asyncio.wait_for(answer_of(connections[number][0]), 5)
                assert [message["data"] for message in answer["messages"]] == [number]


def ask(connections: list[Streams]) -> None:
    for number, (_, writer) in enumerate(connections):
        path = f"/api/v1/pop/queue/q{number}?wait=true&timeout=60000&autoAck=true"
        writer.write(f"GET {path} HTTP/1.1\r\n".encode() + HOST)


def count_calls(client: Client) -> list[str]:
    """Note from now on what the server asks the database."""
    calls: list[str] = []
    for database in (client.app.state.database, client.app.state.mq._database):
        connection = database._connection

        def noted(connection: Any = connection) -> Any:
            calls.append("call")
            return connection()

        database._connection = noted
    return calls


@asynccontextmanager
async def connected(client: Client, count: int) -> AsyncGenerator[list[Streams]]:
    streams = [await asyncio.open_connection("127.0.0.1", client.port) for _ in range(count)]
    try:
        yield streams
    finally:
        for _, writer in streams:
            writer.close()


async def answer_of(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return json.loads(await reader.readexactly(int(length)))
