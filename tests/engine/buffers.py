"""Buffers that each call of the hot path touches, on a database of its own.

`python -m tests.engine.buffers` measures every PostgreSQL at hand and writes buffers.json, to which test_buffers.py
compares. Buffers are the same on every machine, unlike seconds.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from skep import embedded
from skep.engine.install import install
from tests.conftest import FAST, directory
from tests.postgres_binaries import postgres_binaries

EXPECTED = Path(__file__).with_name("buffers.json")
SETTINGS = {**FAST, "autovacuum": "off", "jit": "off"}
CALLS = 9  # calls of each kind; the median ignores a call that runs a discovery or extends a table
DRAINED = 5_000  # partitions; 100,000 give the same figures and take minutes to build
QUEUES = 1_000  # in one namespace

POP = "SELECT * FROM skep.pop(%(queue)s, 'g', batch => %(batch)s::int, autocommit => true)"
POP_ALL = """
    SELECT lease FROM skep.pop(%(queue)s, 'g', 1000, 1000, namespace => %(namespace)s, autocommit => true)
"""
POP_NAMESPACE = "SELECT lease FROM skep.pop(NULL, 'g', namespace => 'n', autocommit => true)"
PUSH_MANY = "SELECT * FROM skep.push_many(%(queues)s::text[], %(partitions)s::text[], %(payloads)s::text[]::jsonb[])"
ACK_LEASED = "SELECT skep.ack(lease_id) FROM skep.runs WHERE lease_id IS NOT NULL"
# Discovery cleans up once a second; this makes a second pass.
LATER = "UPDATE skep.discoveries SET discovered_at = discovered_at - interval '1 s', scan_at = scan_at - interval '1 s'"
IN_READY_LIST = "SELECT count(*) FROM skep.runs WHERE ready_at IS NOT NULL"

Measured = dict[str, float]


def buffers(connection: psycopg.Connection, query: str, **arguments: Any) -> int:
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}"
    ((plans,),) = connection.execute(explain, arguments).fetchall()  # type: ignore[arg-type]
    plan = plans[0]["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def push_to(connection: psycopg.Connection, names: list[tuple[str, str]]) -> None:
    queues, partitions = [queue for queue, _ in names], [partition for _, partition in names]
    arguments = {"queues": queues, "partitions": partitions, "payloads": ['{"n": 1}'] * len(names)}
    connection.execute(PUSH_MANY, arguments)


def drain_fully(connection: psycopg.Connection, queue: str | None, namespace: str | None = None, most: int = 1) -> None:
    """Drain the queue, and pop until discovery has removed the drained partitions from the ready list."""
    deadline = time.monotonic() + 120
    arguments = {"queue": queue, "namespace": namespace}
    while True:
        leases = [row[0] for row in connection.execute(POP_ALL, arguments).fetchall()]
        if leases:
            connection.execute("SELECT skep.ack_all(%s)", [leases])
        ((left,),) = connection.execute(IN_READY_LIST).fetchall()
        if not leases and left <= most:
            break
        assert time.monotonic() < deadline, f"{left} drained partitions are still in the ready list"
        connection.execute(LATER)
    connection.execute("VACUUM ANALYZE")


def repeat(work: Callable[[], int]) -> float:
    work()
    return median(work() for _ in range(CALLS))


def measure_calls(connection: psycopg.Connection) -> Measured:
    """Push, pop and ack in one partition."""

    def push(size: int) -> int:
        arguments = {"queues": ["q"] * size, "partitions": ["p"] * size, "payloads": ['{"n": 1}'] * size}
        return buffers(connection, PUSH_MANY, **arguments)

    def push_one() -> int:
        return buffers(connection, "SELECT * FROM skep.push('q', '{}', 'p')")

    def pop(size: int) -> int:
        connection.execute(ACK_LEASED)
        return buffers(connection, POP, queue="q", batch=size)

    def ack() -> int:
        connection.execute(POP, {"queue": "q", "batch": 1})
        ((lease,),) = connection.execute("SELECT lease_id FROM skep.runs WHERE lease_id IS NOT NULL").fetchall()
        return buffers(connection, "SELECT skep.ack(%(lease)s)", lease=lease)

    push_to(connection, [("q", "p")] * 5_000)
    connection.execute(POP, {"queue": "q", "batch": 1})
    connection.execute(ACK_LEASED)
    connection.execute("VACUUM ANALYZE")
    measured = {"push 1": repeat(push_one), "push 100": repeat(lambda: push(100))}
    measured |= {"pop 1": repeat(lambda: pop(1)), "pop 100": repeat(lambda: pop(100))}
    connection.execute(ACK_LEASED)
    return measured | {"ack 1": repeat(ack)}


def measure_drained(connection: psycopg.Connection, drained: int = DRAINED) -> Measured:
    """Pop beside partitions that are drained, and upkeep with nothing to do."""
    connection.execute("SELECT skep.configure_queue('d', '{\"retention_seconds\": 86400}')")
    for first in range(0, drained, 5_000):
        push_to(connection, [("d", f"p{n}") for n in range(first, min(first + 5_000, drained))])
    drain_fully(connection, "d")
    size = f"{drained:,} drained partitions"

    def pop_one() -> int:
        connection.execute("SELECT skep.push('d', '{}', 'p0')")
        used = buffers(connection, POP, queue="d", batch=1)
        connection.execute(ACK_LEASED)
        return used

    measured = {
        f"empty pop, {size}": repeat(lambda: buffers(connection, POP, queue="d", batch=1)),
        f"pop 1, {size}": repeat(pop_one),
    }
    drain_fully(connection, "d")
    connection.execute("SELECT skep.sample('0 s')")
    return measured | {
        f"sample, {size}": repeat(lambda: buffers(connection, "SELECT skep.sample('0 s')")),
        f"retention, {size}": repeat(lambda: retention_at_rest(connection)),
    }


def retention_at_rest(connection: psycopg.Connection) -> int:
    """Return the buffers of a retention call that visits the partitions of ten seconds and finds nothing to delete."""
    connection.execute("UPDATE skep.retention_visits SET visited_to = 0, visited_at = now() - interval '10 s'")
    used = buffers(connection, "SELECT * FROM skep._partitions_due()")
    due = connection.execute("SELECT due FROM skep._partitions_due()").fetchall()
    assert due == [([],)], "with nothing to do, retention visits no partition"
    return used


def measure_namespace(connection: psycopg.Connection, queues: int = QUEUES) -> Measured:
    """Pop from a namespace with this many drained queues, and again with work in one of them."""
    push_to(connection, [(f"n.{number}", "p") for number in range(queues)])
    drain_fully(connection, None, "n")
    size = f"{queues:,} queues"

    def pop_one() -> int:
        connection.execute("SELECT skep.push('n.0', '{}', 'p')")
        used = buffers(connection, POP_NAMESPACE)
        assert connection.execute(ACK_LEASED).fetchall(), "the pop has leased the message"
        return used

    return {
        f"empty pop of a namespace, {size}": repeat(lambda: buffers(connection, POP_NAMESPACE)),
        f"pop 1 of a namespace, {size}": repeat(pop_one),
    }


def measure(url: str, *, of: tuple[Callable[[psycopg.Connection], Measured], ...] = ()) -> Measured:
    """Run each measurement in a database of its own, so that no measurement depends on another."""
    measured: Measured = {}
    for number, part in enumerate(of or (measure_calls, measure_drained, measure_namespace)):
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE buffers_{number}")  # type: ignore[arg-type]
        database = make_conninfo(url, dbname=f"buffers_{number}")
        install(database)
        with psycopg.connect(database, autocommit=True) as connection:
            measured |= part(connection)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE buffers_{number}")  # type: ignore[arg-type]
    return measured


def main() -> None:
    expected: dict[str, Measured] = {}
    for major, bin_dir in postgres_binaries().items():
        with directory() as data_dir, embedded.start(data_dir, settings=SETTINGS, bin_dir=bin_dir) as server:
            expected[str(major)] = measure(server.url)
        print(major, expected[str(major)], flush=True)
    EXPECTED.write_text(json.dumps(expected, indent=2) + "\n")


if __name__ == "__main__":
    main()
