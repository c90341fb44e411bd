"""Growth of the cost of a call with history, drained partitions, groups, queues of a namespace, and open transactions.

CPU of the backend and buffers per call, as in `bench.peers`, on a separate cluster without autovacuum.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from bench.fill import fill
from bench.peers import Backend, Cost, Meter, cluster
from bench.report import Row, progress
from skep.engine.install import install

CALLS = 50
HISTORY = 5_000_000
DRAINED = 100_000
GROUPS = 50
QUEUES = 1_000
AT_ONCE = 4_000
HELD = 5_000
PUSH = "SELECT * FROM skep.push(%(queue)s, '{}', %(partition)s)"
POP = "SELECT lease FROM skep.pop(%(queue)s, 'g', autocommit => true)"
POP_NAMESPACE = "SELECT lease FROM skep.pop(NULL, 'g', namespace => 'n', autocommit => true)"
POP_MANY = """
    SELECT lease FROM skep.pop(%(queue)s, 'g', %(size)s::int, %(size)s::int, namespace => %(namespace)s,
                               autocommit => true)
"""
ACK_MANY = "SELECT skep.ack_all(%(leases)s::uuid[])"
LATER = "UPDATE skep.discoveries SET discovered_at = discovered_at - interval '1 s', scan_at = scan_at - interval '1 s'"


@dataclass(frozen=True, slots=True)
class Case:
    """Calls whose cost is compared before and after something has grown."""

    name: str
    grow: Callable[[Backend], None]
    queue: str | None = "q"


def _cycle(backend: Backend, queue: str | None) -> None:
    """Pop and acknowledge one message."""
    leases = backend.run(POP_NAMESPACE) if queue is None else backend.run(POP, queue=queue)
    if not leases:
        raise RuntimeError("nothing to pop")
    backend.run("SELECT skep.ack(%(lease)s)", lease=leases[0][0])


def _drain(backend: Backend, queue: str | None, *, settle: bool = True) -> None:
    """Consume everything, and pop until the drained partitions have left the ready list."""
    namespace = "n" if queue is None else None
    while True:
        rows = backend.run(POP_MANY, queue=queue, namespace=namespace, size=1_000)
        if rows:
            backend.run(ACK_MANY, leases=[row[0] for row in rows])
            continue
        ((waiting,),) = backend.run("SELECT count(*) FROM skep.runs WHERE ready_at IS NOT NULL")
        if waiting <= 10 or not settle:
            return
        backend.connection.execute(LATER)


def _costs(backend: Backend, queue: str | None) -> tuple[Cost, Cost]:
    """Return the cost of a push, and of a pop + ack."""
    backend.connection.execute("VACUUM ANALYZE")
    name = "n.0" if queue is None else queue
    work = lambda b: b.run(PUSH, queue=name, partition="busy0")  # noqa: E731
    for _ in range(10):
        work(backend)
        _cycle(backend, queue)
    meter = Meter(backend)
    push = meter.measure(work, CALLS)
    return push, meter.measure(lambda b: _cycle(b, queue), CALLS)


def _grow_history(backend: Backend) -> None:
    fill(backend.connection, "q", HISTORY, prefix="busy", partitions=1)
    backend.run("SELECT skep.seek('g', 'q', 'end')")


def _grow_partitions(backend: Backend) -> None:
    fill(backend.connection, "q", DRAINED, partitions=DRAINED)
    _drain(backend, "q")


def _grow_groups(backend: Backend) -> None:
    for number in range(GROUPS - 1):
        backend.run("SELECT count(*) FROM skep.pop('q', %(group)s, auto_ack => true)", group=f"g{number}")


def _grow_queues(backend: Backend) -> None:
    fill_queues = """
        SELECT count(p.ord)
        FROM (SELECT array_agg('n.' || n) AS queues, array_agg('p'::text) AS partitions,
                     array_agg('{}'::jsonb) AS payloads
              FROM generate_series(1, %(queues)s::int) n) item
        CROSS JOIN LATERAL skep.push_many(queues, partitions, payloads) p
    """
    backend.run(fill_queues, queues=QUEUES)
    _drain(backend, None)


@contextmanager
def _database(url: str) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE growth")
        database = make_conninfo(url, dbname="growth")
        install(database)
        try:
            yield database
        finally:
            admin.execute("DROP DATABASE growth WITH (FORCE)")


def _rows(name: str, before: tuple[Cost, Cost], after: tuple[Cost, Cost]) -> list[Row]:
    rows = []
    for call, old, new in zip(("push 1", "pop + ack 1"), before, after, strict=True):
        rows.append(Row(f"{call}, {name}", new.cpu, "µs of CPU", "before", new.cpu / old.cpu))
        rows.append(Row(f"{call}, {name}", new.buffers, "buffers", "before", new.buffers / max(old.buffers, 1)))
    return rows


def _compare(url: str, case: Case) -> list[Row]:
    progress(f"growth: {case.name}")
    with _database(url) as database:
        backend = Backend(database)
        backend.run(PUSH, queue="n.0" if case.queue is None else case.queue, partition="busy0")
        _drain(backend, case.queue)
        before = _costs(backend, case.queue)
        case.grow(backend)
        after = _costs(backend, case.queue)
        backend.connection.close()
    return _rows(case.name, before, after)


def _at_once(url: str) -> list[Row]:
    """Measure one pop and one ack of many partitions, per partition."""
    costs = {}
    with _database(url) as database:
        backend = Backend(database)
        for size in (AT_ONCE // 10, AT_ONCE):
            for _ in range(2):  # the second time the group has already read from all of them
                fill(backend.connection, f"q{size}", size, partitions=size)
                before = backend.cpu()
                rows = backend.run(POP_MANY, queue=f"q{size}", namespace=None, size=size)
                popped = backend.cpu()
                backend.run(ACK_MANY, leases=[row[0] for row in rows])
                costs[size] = ((popped - before) / 1e3 / len(rows), (backend.cpu() - popped) / 1e3 / len(rows))
        backend.connection.close()
    few, many = costs[AT_ONCE // 10], costs[AT_ONCE]
    return [
        Row(f"{call} of {AT_ONCE:,} partitions at once, each", new, "µs of CPU", f"{AT_ONCE // 10:,}", new / old)
        for call, old, new in zip(("pop", "ack"), few, many, strict=True)
    ]


def _held(url: str) -> list[Row]:
    """Compare the first and the last cycles while a transaction is open, so that no dead row can be removed."""
    with _database(url) as database, psycopg.connect(database) as holder:
        backend = Backend(database)
        backend.run(PUSH, queue="q", partition="busy0")
        _drain(backend, "q")
        holder.execute("CREATE TEMP TABLE held (x integer)")
        holder.execute("SELECT pg_current_xact_id()")
        before = _costs(backend, "q")
        began = time.monotonic()
        for _ in range(HELD):
            backend.run(PUSH, queue="q", partition="busy0")
            _cycle(backend, "q")
        after = _costs(backend, "q")
        backend.connection.close()
        name = f"transaction held open for {HELD:,} messages ({time.monotonic() - began:.0f} s)"
    return _rows(name, before, after)


CASES = (
    Case(f"{HISTORY:,} messages in the partition", _grow_history),
    Case(f"{DRAINED:,} drained partitions", _grow_partitions),
    Case(f"{GROUPS} groups", _grow_groups),
    Case(f"namespace of {QUEUES:,} queues", _grow_queues, None),
)


def measure(bin_dir: Path | None = None) -> list[Row]:
    with cluster(bin_dir) as url:
        rows: list[Any] = [row for case in CASES for row in _compare(url, case)]
        return rows + _at_once(url) + _held(url)
