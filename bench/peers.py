"""Cost of a call compared to pgmq, a SKIP LOCKED table and a bare insert: backend CPU, WAL and buffers.

Elapsed time depends on the disk and on other processes; CPU, WAL and buffers depend on them less. Each installed
PostgreSQL gets a new cluster with durable commits and no autovacuum; every table is vacuumed before each round. Pops
leave a backlog in the queue: the pages of an almost empty table have room for new row versions, which is not typical.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table as Shown

from bench import tables
from bench.plot import draw
from bench.report import Comparison, Row, number, progress
from skep.embedded import start

CALLS = 200  # of each kind in a round
UNMEASURED = 3  # calls before them: after VACUUM PostgreSQL plans again
BACKLOG = 2_000  # messages that stay in a queue
FIRST_POPS = 5
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "jit": "off",
    "shared_preload_libraries": "",
}
CONDITIONS = (
    "CPU of the backend per call on one connection, prepared statements, payloads of 200 bytes, durable commits.\n"
    "Medians of {rounds} rounds of {calls} calls, taken in turn; pops leave a backlog of {backlog} messages.\n"
    "Machine with {cores} cores."
)
COUNTERS = """
    SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint, blks_hit + blks_read
    FROM pg_stat_database WHERE datname = current_database()
"""

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one call: microseconds of CPU, bytes of WAL, buffers."""

    cpu: float
    wal: float
    buffers: float


class Backend:
    """One connection, and the resources that its server process has used."""

    def __init__(self, url: str) -> None:
        self.connection: Connection = psycopg.connect(url, autocommit=True)
        self.cursor = self.connection.cursor()
        self.schedstat = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")

    def run(self, query: str, *, binary: bool = False, **arguments: Any) -> list[Any]:
        self.cursor.execute(query, arguments, prepare=True, binary=binary)  # type: ignore[arg-type]
        return self.cursor.fetchall()

    def cpu(self) -> int:
        """Return the CPU nanoseconds of the backend so far; they are exact while it is idle."""
        return int(self.schedstat.read_text().split()[0])

    def counters(self) -> tuple[int, int]:
        """Return the WAL bytes and buffers of the whole server so far; nothing else runs on it."""
        self.run("SELECT pg_stat_force_next_flush()")
        self.run("SELECT pg_stat_clear_snapshot()")
        wal, buffers = self.run(COUNTERS)[0]
        return int(wal), int(buffers)


Work = Callable[[Backend], None]


class Meter:
    """Measures the costs of calls on one backend, without the cost of measuring."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.own = (0.0, 0.0)
        for _ in range(6):
            backend.counters()  # psycopg prepares, PostgreSQL plans
        costs = [self._between(lambda: None) for _ in range(5)]
        self.own = (median(cost[1] for cost in costs), median(cost[2] for cost in costs))

    def _between(self, work: Callable[[], object]) -> tuple[float, float, float]:
        before, cpu = self.backend.counters(), self.backend.cpu()
        work()
        used = self.backend.cpu() - cpu
        after = self.backend.counters()
        return used / 1e3, after[0] - before[0], after[1] - before[1]

    def measure(self, work: Work, calls: int) -> Cost:
        def repeat() -> None:
            for _ in range(calls):
                work(self.backend)

        cpu, wal, buffers = self._between(repeat)
        return Cost(cpu / calls, (wal - self.own[0]) / calls, (buffers - self.own[1]) / calls)


def _push(table: tables.Table, size: int) -> Work:
    return lambda backend: table.push(backend.run, size)


def _push_wide(table: Any, size: int) -> Work:
    return lambda backend: table.push_wide(backend.run, size)


def _pop_ack(queue: tables.Queue, size: int) -> Work:
    def work(backend: Backend) -> None:
        lease = queue.pop(backend.run, size)
        if lease is None:
            raise RuntimeError(f"{queue.name}: nothing to pop")
        queue.ack(backend.run, lease)

    return work


def _pop_nothing(queue: tables.Queue) -> Work:
    def work(backend: Backend) -> None:
        if queue.pop(backend.run, 1) is not None:
            raise RuntimeError(f"{queue.name}: the queue is not empty")

    return work


@dataclass(frozen=True)
class Kind:
    """One kind of call. Each call removes `taken` messages from the queue."""

    name: str
    works: dict[str, Work]
    taken: int = 0


def _kinds() -> Iterator[Kind]:
    for size in (1, 100):
        yield Kind(f"push {size}", {table.name: _push(table, size) for table in tables.TABLES})
    yield Kind("push 100 to 100 partitions", {table.name: _push_wide(table, 100) for table in tables.WIDE})
    for size in (1, 10, 100):
        yield Kind(f"pop + ack {size}", {queue.name: _pop_ack(queue, size) for queue in tables.QUEUES}, size)
    yield Kind("empty pop", {queue.name: _pop_nothing(queue) for queue in tables.QUEUES})


Samples = dict[tuple[str, str], list[Cost]]  # by kind and table


def _drain(backend: Backend) -> None:
    for queue in tables.QUEUES:
        while (lease := queue.pop(backend.run, 10_000)) is not None:
            queue.ack(backend.run, lease)


def _fill(backend: Backend, messages: int) -> None:
    for queue in tables.QUEUES:
        for _ in range(0, messages, 100):
            queue.push(backend.run, 100)


def _round(meter: Meter, calls: int) -> Iterator[tuple[str, str, Cost]]:
    backend = meter.backend
    for kind in _kinds():
        if kind.taken:
            _fill(backend, (UNMEASURED + calls) * kind.taken + BACKLOG)
        backend.connection.execute("VACUUM")
        for name, work in kind.works.items():
            for _ in range(UNMEASURED):
                work(backend)
            yield kind.name, name, meter.measure(work, calls)
        _drain(backend)


def _first_pops(url: str, backend: Backend) -> Iterator[tuple[str, str, Cost]]:
    """Measure a pop + ack on a new connection: catalog caches and plans are cold."""
    for queue in tables.QUEUES:
        queue.push(backend.run, 1)
        fresh = Backend(url)
        before = fresh.cpu()
        _pop_ack(queue, 1)(fresh)
        yield "first pop + ack of a connection", queue.name, Cost((fresh.cpu() - before) / 1e3, 0, 0)
        fresh.connection.close()


def _sample(url: str, label: str, rounds: int) -> Samples:
    backend = Backend(url)
    tables.create_all(backend.connection, url)
    samples: Samples = {}
    for turn in range(rounds + 1):
        progress(f"peers, {label}: round {turn + 1} of {rounds + 1}")
        taken = list(_round(Meter(backend), CALLS if turn else CALLS // 5))  # the first round warms up
        if 0 < turn <= FIRST_POPS:
            taken += _first_pops(url, backend)
        for kind, name, cost in taken if turn else ():
            samples.setdefault((kind, name), []).append(cost)
    backend.connection.close()
    return samples


SQL, CLIENT, SERVER = (table.name for table in tables.WIDE)
# The maximum ratio to the CPU of pgmq.
CPU_BARS = {
    ("push 1", SQL): 1.0,
    ("push 1", SERVER): 1.2,
    **{("push 100", name): 1.1 for name in (SQL, CLIENT, SERVER)},
    **{("pop + ack 1", name): 1.0 for name in (SQL, CLIENT, SERVER)},
    **{("pop + ack 100", name): 0.6 for name in (SQL, CLIENT, SERVER)},
}
WAL_BARS = {("pop + ack 1", name): 1.0 for name in (SQL, CLIENT, SERVER)}


def _ratio(samples: Samples, key: tuple[str, str], cost: Callable[[Cost], float]) -> float | None:
    """Return the median of the ratios to pgmq in each round: a disturbance affects both."""
    peers = samples.get((key[0], tables.PEER.name))
    if peers is None:
        return None
    return median(cost(ours) / max(cost(theirs), 1e-9) for ours, theirs in zip(samples[key], peers, strict=True))


def _show(label: str, samples: Samples) -> None:
    shown = Shown("call", "", "CPU, µs", "ratio to pgmq", "WAL, bytes", "buffers", title=label, title_justify="left")
    last = ""
    for (kind, name), costs in samples.items():
        if last and kind != last:
            shown.add_section()
        ratio = _ratio(samples, (kind, name), lambda cost: cost.cpu)
        wal, buffers = median(cost.wal for cost in costs), median(cost.buffers for cost in costs)
        is_counted = any(cost.buffers for cost in costs)
        shown.add_row(
            kind if kind != last else "",
            name,
            f"{median(cost.cpu for cost in costs):,.0f}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{wal:,.0f}" if is_counted else "",
            number(buffers) if is_counted else "",
        )
        last = kind
    progress("")
    Console(width=130).print(shown)


def _rows(label: str, samples: Samples) -> list[Row]:
    rows = []
    for bars, unit, cost in (
        (CPU_BARS, "µs of CPU", lambda cost: cost.cpu),
        (WAL_BARS, "bytes of WAL", lambda cost: cost.wal),
    ):
        for key, at_most in bars.items():
            value = median(cost(taken) for taken in samples[key])
            ratio = _ratio(samples, key, cost)
            rows.append(Row(f"{label}: {key[0]}: {key[1]}", value, unit, tables.PEER.name, ratio, at_most=at_most))
    return rows


def _comparisons(label: str, samples: Samples) -> list[Comparison]:
    kinds = ("push 1", "push 100", "pop + ack 1", "pop + ack 10", "pop + ack 100")
    return [
        Comparison(
            f"{kind}, {label}",
            "µs",
            {name: median(c.cpu for c in costs) for (of, name), costs in samples.items() if of == kind},
            less_is_better=True,
        )
        for kind in kinds
    ]


def _programs() -> list[Path | None]:
    """Return the directories of PostgreSQL's programs: None for the embedded ones, and those of Debian."""
    return [None, *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]


@contextmanager
def cluster(bin_dir: Path | None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as directory:
        Path(directory).chmod(0o755)
        with start(Path(directory) / "data", settings=SETTINGS, bin_dir=bin_dir) as server:
            yield server.url


def measure(plot: Path, rounds: int) -> list[Row]:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for bin_dir in _programs():
        with cluster(bin_dir) as url:
            with psycopg.connect(url) as connection:
                label = f"PostgreSQL {connection.info.server_version // 10_000}"
            samples = _sample(url, label, rounds)
        _show(label, samples)
        rows += _rows(label, samples)
        comparisons += _comparisons(label, samples)
    conditions = CONDITIONS.format(rounds=rounds, calls=CALLS, backlog=BACKLOG, cores=os.cpu_count())
    draw(comparisons, lambda name: name.startswith("Skep"), plot, conditions)
    return rows
