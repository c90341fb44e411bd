"""Overhead of the client: the same calls by the client and by the bare driver, in turn."""

import asyncio
import json
import time
from collections.abc import Callable
from statistics import median

import psycopg

from bench.fill import Connection
from bench.report import Row, progress
from skep import AsyncSkep, Skep
from skep.client import calls

BATCH = 100
ROUNDS = 12
CALLS = 40  # of each kind in a round
PAYLOAD = {"id": 1, "customer": "c" * 150, "total": 99.5, "paid": False}


def _push_bare(connection: Connection) -> None:
    messages = json.dumps([{"queue": "overhead", "payload": PAYLOAD} for _ in range(BATCH)])
    connection.execute(calls.PUSH, {"messages": messages, "has_delays": False}).fetchall()


def _consume_bare(connection: Connection, group: str) -> None:
    arguments = {"queue": "overhead", "group": group, "batch": BATCH}
    query = "SELECT * FROM skep.pop(queue => %(queue)s, group_name => %(group)s, batch => %(batch)s)"
    messages = connection.execute(query, arguments).fetchall()
    connection.execute("SELECT skep.ack(%s)", [messages[0][12]])


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return CALLS * BATCH / (time.perf_counter() - start)


def _repeat(work: Callable[[], object]) -> Callable[[], None]:
    def repeated() -> None:
        for _ in range(CALLS):
            work()

    return repeated


def _stream(mq: Skep, group: str) -> Callable[[], None]:
    """Return a function that consumes the next batches of one loop."""
    batches = mq.queue("overhead").consume(group=group, batch=BATCH)

    def consume() -> None:
        for _ in range(CALLS):
            next(batches)

    return consume


async def _async_stream(url: str) -> float:
    async with AsyncSkep(url) as mq:
        taken, start = 0, time.perf_counter()
        async for _ in mq.queue("overhead").consume(group="async", batch=BATCH):
            taken += 1
            if taken == CALLS:
                break
        return CALLS * BATCH / (time.perf_counter() - start)


def _handlers(mq: Skep, name: str) -> float:
    """Return the rate of a handler per message, for the same number of messages."""
    seen: list[float] = []

    @mq.consumer("overhead", group=name, batch=BATCH)
    def handle(_message: object) -> None:
        seen.append(0)
        if len(seen) == CALLS * BATCH:
            handle.stop()

    start = time.perf_counter()
    handle.run()
    return len(seen) / (time.perf_counter() - start)


def measure(url: str) -> list[Row]:
    rates: dict[str, list[float]] = {}
    with psycopg.connect(url, autocommit=True) as connection, Skep(url) as mq:
        queue = mq.queue("overhead")
        contestants = {
            "push 100, bare driver": _repeat(lambda: _push_bare(connection)),
            "push 100, client": _repeat(lambda: queue.push_many([PAYLOAD] * BATCH)),
            "pop + ack 100, bare driver": _repeat(lambda: _consume_bare(connection, "bare")),
            "consume batches of 100, client": _stream(mq, "client"),
        }
        for number in range(ROUNDS):
            progress(f"client overhead: round {number + 1} of {ROUNDS}")
            for name, work in contestants.items():
                rates.setdefault(name, []).append(_timed(work))
            rates.setdefault("consume batches of 100, async client", []).append(asyncio.run(_async_stream(url)))
            rates.setdefault("handler per message, client", []).append(_handlers(mq, f"handlers {number}"))
    return _rows({name: rate[1:] for name, rate in rates.items()})


def _rows(rates: dict[str, list[float]]) -> list[Row]:
    def row(name: str, bare: str = "", at_least: float | None = None) -> Row:
        ratio = median(a / b for a, b in zip(rates[name], rates[bare], strict=True)) if bare else None
        return Row(name, median(rates[name]), "msg/s", bare, ratio, at_least=at_least)

    push, consume = "push 100, bare driver", "pop + ack 100, bare driver"
    return [
        row(push),
        row("push 100, client", push, 0.8),
        row(consume),
        row("consume batches of 100, client", consume, 0.8),
        row("consume batches of 100, async client", consume),
        row("handler per message, client", consume),
    ]
