"""Latency of pop: it must not grow with messages, consumed messages or idle partitions."""

import time
from statistics import median

import psycopg

from bench.fill import Connection, fill
from bench.report import Row, progress

CALLS = 300
WARM_UP = 20
POP = "SELECT count(*) FROM skep.pop(%s, 'g', auto_ack => true)"
DRAIN = "SELECT count(*) FROM skep.pop(%s, 'g', batch => 10000, partitions => 10000, auto_ack => true)"


def _pop_time(connection: Connection, queue: str) -> float:
    start = time.perf_counter()
    popped = connection.execute(POP, (queue,), prepare=True).fetchone()
    elapsed = time.perf_counter() - start
    if popped != (1,):
        raise RuntimeError(f"{queue} is empty")
    return elapsed


def _compare(connection: Connection, small: str, large: str) -> tuple[float, float, float]:
    """Return the median pop time of both queues, popped in turn, and their ratio."""
    pairs = [(_pop_time(connection, small), _pop_time(connection, large)) for _ in range(CALLS)][WARM_UP:]
    times = [median(column) * 1e3 for column in zip(*pairs, strict=True)]
    return times[0], times[1], times[1] / times[0]


def _by_messages(connection: Connection, messages: int) -> list[Row]:
    fill(connection, "ten-thousand", 10_000)
    fill(connection, "many-messages", messages)
    connection.execute("SELECT skep.seek('g', 'many-messages', %s)", (str(messages // 100 * 99),))
    connection.execute("VACUUM ANALYZE")
    few, many, ratio = _compare(connection, "ten-thousand", "many-messages")
    consumed = f"pop 1, {messages:,} messages, 99 % consumed"
    return [
        Row("pop 1, 10,000 messages", few, "ms"),
        Row(consumed, many, "ms", "10,000 messages", ratio, at_most=1.3),
    ]


def _by_partitions(connection: Connection) -> list[Row]:
    fill(connection, "many-partitions", 100_000, partitions=100_000, prefix="idle-")
    while connection.execute(DRAIN, ("many-partitions",)).fetchone() != (0,):
        progress("many-partitions: draining the idle ones")
    for queue in ("ten-partitions", "many-partitions"):
        fill(connection, queue, 2 * CALLS, partitions=10, prefix="busy-")
    connection.execute("VACUUM ANALYZE")
    narrow, wide, ratio = _compare(connection, "ten-partitions", "many-partitions")
    return [
        Row("pop 1, 10 partitions", narrow, "ms"),
        Row("pop 1, 100,000 partitions, 10 busy", wide, "ms", "10 partitions", ratio, at_most=2.0),
    ]


def measure(url: str, messages: int) -> list[Row]:
    with psycopg.connect(url, autocommit=True) as connection:
        return _by_messages(connection, messages) + _by_partitions(connection)
