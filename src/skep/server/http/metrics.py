"""The counters of a server process. A request costs a few additions; everything else happens when metrics are read.

Several processes behind one port are one server to Prometheus, and the process that is asked reports for all. Each
writes its counters to a directory once a second. Responses are made from these files alone, so no counter ever goes
back.

    worker ── <pid>.json ──┐
    worker ── <pid>.json ──┼── any process adds them up
    dead   ── gone.json  ──┘   (its counts stay, its gauges go)
"""

import contextlib
import os
import resource
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from skep.server.http.members import Member

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
GONE = "gone.json"
PAGE = resource.getpagesize()


class Histogram(msgspec.Struct):
    """How often a value was in each bucket; the last one has no bound."""

    bounds: tuple[float, ...]
    buckets: list[int]
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: "Histogram") -> None:
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.total += other.total


def histogram(bounds: tuple[float, ...]) -> Histogram:
    return Histogram(bounds, [0] * (len(bounds) + 1))


class Route(msgspec.Struct):
    """The requests of one route."""

    method: str
    path: str
    statuses: dict[int, int]
    seconds: Histogram


class Counts(msgspec.Struct):
    """Counters."""

    routes: dict[str, Route] = {}
    merged: dict[str, Histogram] = {}  # requests in a database call, by kind
    messages: dict[str, int] = {}  # by what became of them

    def add(self, other: "Counts") -> None:
        for name, route in other.routes.items():
            mine = self.routes.setdefault(name, Route(route.method, route.path, {}, histogram(SECONDS)))
            mine.seconds.add(route.seconds)
            for status, count in route.statuses.items():
                mine.statuses[status] = mine.statuses.get(status, 0) + count
        for kind, sizes in other.merged.items():
            self.merged.setdefault(kind, histogram(SIZES)).add(sizes)
        for stage, count in other.messages.items():
            self.messages[stage] = self.messages.get(stage, 0) + count

    @property
    def requests(self) -> int:
        return sum(sum(route.statuses.values()) for route in self.routes.values())


class Gauges(msgspec.Struct):
    """Gauges of a process."""

    uptime: float
    resident_bytes: int
    virtual_bytes: int
    user_seconds: float
    system_seconds: float
    pool: dict[str, int]
    parked: dict[str, int]  # by queue
    members: list[Member] = []


class Worker(msgspec.Struct):
    """One process."""

    pid: int
    counts: Counts
    gauges: Gauges


class Gone(msgspec.Struct):
    """Counters of processes that have ended."""

    pids: list[int] = []
    counts: Counts = msgspec.field(default_factory=Counts)


class Meter:
    """The counters of this process."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.counts = Counts()

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        name = f"{method} {path}"
        route = self.counts.routes.get(name)
        if route is None:
            route = self.counts.routes[name] = Route(method, path, {}, histogram(SECONDS))
        route.statuses[status] = route.statuses.get(status, 0) + 1
        route.seconds.observe(seconds)

    def merged(self, kind: str) -> Callable[[float], None]:
        return self.counts.merged.setdefault(kind, histogram(SIZES)).observe

    def messages(self, stage: str, count: int) -> None:
        self.counts.messages[stage] = self.counts.messages.get(stage, 0) + count

    def read(self, pool: dict[str, int], parked: dict[str, int], members: Iterable[Member] = ()) -> Worker:
        virtual, resident = (int(pages) * PAGE for pages in Path("/proc/self/statm").read_text().split()[:2])
        used = os.times()
        uptime = time.monotonic() - self.started
        gauges = Gauges(uptime, resident, virtual, used.user, used.system, dict(pool), dict(parked), list(members))
        return Worker(os.getpid(), self.counts, gauges)


class Board:
    """A directory in which the processes of one server share their counters."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, worker: Worker) -> None:
        self._put(f"{worker.pid}.json", msgspec.json.encode(worker))

    def _put(self, name: str, text: bytes) -> None:
        """Replace a file atomically."""
        draft = self._directory / f".{name}.{os.getpid()}"
        draft.write_bytes(text)
        draft.replace(self._directory / name)

    def read(self) -> tuple[list[Worker], Counts]:
        """Return the live processes, and the counters of all together."""
        gone = self._gone()
        workers = [worker for worker in self._workers() if worker.pid not in gone.pids]
        for worker in workers:
            gone.counts.add(worker.counts)
        return workers, gone.counts

    def bury(self, pid: int) -> None:
        """Keep only the counters of a dead process."""
        gone = self._gone()
        for worker in self._workers():
            if worker.pid == pid and pid not in gone.pids:
                gone.counts.add(worker.counts)
        self._put(GONE, msgspec.json.encode(Gone([pid], gone.counts)))
        (self._directory / f"{pid}.json").unlink(missing_ok=True)

    def _gone(self) -> Gone:
        try:
            return msgspec.json.decode((self._directory / GONE).read_bytes(), type=Gone)
        except FileNotFoundError:
            return Gone()

    def _workers(self) -> Iterable[Worker]:
        for path in sorted(self._directory.glob("[0-9]*.json")):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                yield msgspec.json.decode(path.read_bytes(), type=Worker)
