"""Twenty open dashboards beside a server that is pushed to as fast as it goes: with and without them, in turn.

What a page asks for, and how often, is in PAGES; tests/dashboard/test_requests.py compares it with the pages themselves.
"""

import asyncio
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg

from bench.fill import fill
from bench.http import CLOCK_TICKS, LANES, PORT, serving, wrk
from bench.report import Row, progress

QUEUE, GROUP = "http", "billing"
ROUNDS = 10
DASHBOARD = "/api/v1/dashboard"
OF_QUEUE = f"{DASHBOARD}/queues/{QUEUE}"
# Path and seconds between two questions. Rights are asked for once a minute.
PAGES: dict[str, dict[str, float]] = {
    "overview": {
        f"{DASHBOARD}/overview": 5,
        f"{DASHBOARD}/trend?seconds=3600&points=90": 10,
        f"{DASHBOARD}/database": 5,
        "/metrics": 5,
        "/api/v1/system/maintenance": 10,
    },
    "queues": {f"{DASHBOARD}/queues?sort=lag&descending=true&limit=50&offset=0": 5},
    f"queues/{QUEUE}": {
        f"/api/v1/queues/{QUEUE}": 5,
        f"{OF_QUEUE}/trend?seconds=3600": 10,
        f"{OF_QUEUE}/partitions?sort=lag&limit=20": 10,
        f"{OF_QUEUE}/holders": 10,
        f"{DASHBOARD}/identity?queue={QUEUE}": 60,
    },
    "groups": {f"{DASHBOARD}/groups?sort=lag&descending=true&limit=50&offset=0": 5},
    f"groups/{GROUP}/{QUEUE}": {
        f"/api/v1/groups?group={GROUP}&queue={QUEUE}": 5,
        f"{OF_QUEUE}/trend?group={GROUP}&seconds=3600": 10,
        f"{OF_QUEUE}/members?group={GROUP}&limit=20": 5,
        f"{OF_QUEUE}/partitions?sort=lag&limit=20&group={GROUP}": 10,
        f"/api/v1/subscriptions/{GROUP}/start/{QUEUE}?partition=Default": 60,
        f"{DASHBOARD}/identity?queue={QUEUE}": 60,
    },
    f"messages?queue={QUEUE}": {
        f"{DASHBOARD}/queues?search={QUEUE}&limit=20": 30,
        f"/api/v1/messages?queue={QUEUE}&from=1970-01-01T00%3A00%3A00Z&limit=50&offset=0": 5,
    },
    "dead-letters": {
        "/api/v1/dead-letters/count": 5,
        "/api/v1/dead-letters?limit=25": 5,
        "/api/v1/dead-letters/audit?limit=1000": 10,
        f"{DASHBOARD}/identity": 60,
    },
    "pipelines": {f"{DASHBOARD}/pipelines": 10},
    "system": {
        f"{DASHBOARD}/database": 5,
        f"{DASHBOARD}/servers": 5,
        "/metrics": 5,
        "/api/v1/system/maintenance": 5,
        "/api/v1/analytics/postgres-stats": 15,
    },
}
BURY = "SELECT skep.dead_letter(lease, 'broken') FROM (SELECT DISTINCT lease FROM skep.pop(%s, %s, batch => 10)) popped"
OPEN = ["overview"] * 6 + [f"queues/{QUEUE}"] * 4 + [f"groups/{GROUP}/{QUEUE}"] * 3 + list(PAGES)[1:2] * 2
OPEN += ["groups", f"messages?queue={QUEUE}", "dead-letters", "pipelines", "system"]


class Slice(NamedTuple):
    """Messages a second, and the seconds of processor time of the server and its database in one of them."""

    rate: float
    cpu: float


def measure(url: str, seconds: float) -> list[Row]:
    if shutil.which("wrk") is None:
        progress("dashboards: wrk is not installed (Debian package wrk); skipped")
        return []
    with psycopg.connect(url, autocommit=True) as connection, serving(url) as server, dashboards() as opened:
        _prepare(connection)
        slices: dict[bool, list[Slice]] = {True: [], False: []}
        for number in range(ROUNDS):
            for looking in (False, True) if number % 2 else (True, False):
                progress(f"dashboards: round {number + 1} of {ROUNDS}")
                opened.look(looking)
                slices[looking].append(_slice(server.pid, connection.info.backend_pid, max(seconds, 5)))
        asked = opened.asked / (ROUNDS * max(seconds, 5))
    return _rows(slices[True], slices[False], asked)


def _rows(looked: list[Slice], unseen: list[Slice], asked: float) -> list[Row]:
    name, other = f"HTTP push 10 x 64 connections, {len(OPEN)} open dashboards", "the same without"
    faster = median(one.rate / two.rate for one, two in zip(looked, unseen, strict=True))
    cost, without = _cost(looked), _cost(unseen)
    return [
        Row(name, median(each.rate for each in looked), "msg/s", other, faster, at_least=0.95),
        Row(f"{name}: CPU", cost, "us/message", other, cost / without, at_most=1.05),
        Row(f"{len(OPEN)} open dashboards", asked, "requests/s"),
    ]


def _cost(slices: list[Slice]) -> float:
    """Microseconds of processor time for a message."""
    return 1e6 * sum(each.cpu for each in slices) / sum(each.rate for each in slices)


def _slice(server: int, backend: int, seconds: float) -> Slice:
    """Push for some seconds; processor time is that of our own processes, for others may be at work on the machine."""
    before = _cpu(server, backend)
    load = wrk(server, seconds, 64, "push.lua", 10, LANES, 0)
    return Slice(load.messages, (_cpu(server, backend) - before) / seconds)


def _cpu(server: int, backend: int) -> float:
    postmaster = _stat(backend)[0]
    total = _stat(server)[1] + _stat(postmaster)[1]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent, seconds = _stat(int(entry.name))
                total += seconds if parent == postmaster else 0
    return total


def _stat(pid: int) -> tuple[int, float]:
    """Return the parent of a process, and the seconds that it and its children that have ended took."""
    fields = [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:15]]
    return fields[0], sum(fields[10:14]) / CLOCK_TICKS


def _prepare(connection: psycopg.Connection) -> None:
    """Make 500 queues, three groups that are behind, and some dead letters."""
    connection.execute("SELECT skep.configure_queue('tenant-' || n, '{}') FROM generate_series(1, 500) n")
    for group in (GROUP, "shipping", "search"):
        connection.execute("SELECT skep.subscribe(%s, %s)", [group, QUEUE])
    fill(connection, QUEUE, 20_000, lanes=LANES, prefix="p")
    for _ in range(20):
        connection.execute(BURY, [QUEUE, GROUP])


class Dashboards:
    """Pages that ask as long as somebody looks at them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._looking = asyncio.Event()
        self.asked = 0

    def look(self, looking: bool) -> None:  # noqa: FBT001
        self._loop.call_soon_threadsafe(self._looking.set if looking else self._looking.clear)

    def run(self) -> None:
        polls = [(path, every, n / len(OPEN)) for n, page in enumerate(OPEN) for path, every in PAGES[page].items()]

        async def all_of_them() -> None:
            await asyncio.gather(*(self._poll(path, every, part) for path, every, part in polls))

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(all_of_them())

    async def _poll(self, path: str, every: float, part: float) -> None:
        """Ask as poll.js does; the pages were not opened all at once."""
        await self._looking.wait()
        await asyncio.sleep(every * part)
        reader, writer = await asyncio.open_connection("localhost", PORT)
        while True:
            await self._looking.wait()
            if reader.at_eof():  # nobody looked for a while
                writer.close()
                reader, writer = await asyncio.open_connection("localhost", PORT)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nCache-Control: max-age=30\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            if " 200 " not in head.partition("\r\n")[0]:
                raise RuntimeError(f"{path}: {head}")
            await reader.readexactly(int(head.lower().partition("content-length: ")[2].partition("\r\n")[0]))
            self.asked += 1
            await asyncio.sleep(every)

    def end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            self._loop.call_soon_threadsafe(task.cancel)


@contextmanager
def dashboards() -> Generator[Dashboards]:
    opened = Dashboards()
    thread = threading.Thread(target=opened.run, daemon=True)
    thread.start()
    try:
        yield opened
        if not thread.is_alive():
            raise RuntimeError("a page was not answered")
    finally:
        opened.end()
        thread.join(10)
