"""The database, a server or a worker is killed under load: what was accepted is there, once, and work goes on."""

import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from skep import embedded
from skep.engine.install import install
from tests.faults.database import SETTINGS
from tests.faults.database import Server as Postgres
from tests.server.killable import Serve, killable
from tests.server.serving import until

LEASE = 2  # seconds


class Load:
    """Clients that push and pop until the end of the block, and what they were told."""

    def __init__(self, server: Serve) -> None:
        self.server = server  # may change under way
        self.accepted: list[str] = []
        self.refused: list[tuple[str, int, str]] = []
        self.cut = 0
        self.popped: set[str] = set()
        self._name = uuid4().hex
        self._numbers = itertools.count()
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        with ThreadPoolExecutor(6) as threads:
            work = [threads.submit(self._again, job) for job in (self._push,) * 4 + (self._pop,) * 2]
            try:
                yield
            finally:
                self._stopping.set()
        assert all(done.result() is None for done in work)

    def _again(self, job: Any) -> None:
        while not self._stopping.is_set():
            try:
                job()
            except (OSError, http.client.HTTPException):
                self.cut += 1
                time.sleep(0.05)

    def _push(self) -> None:
        payload = f"{self._name} {next(self._numbers)}"
        status, answer = self.server.push("q", payload)
        if status == 201:
            self.accepted.append(payload)
        else:
            self.refused.append(("push", status, answer["error"]))
            time.sleep(0.05)

    def _pop(self) -> None:
        """Take messages, wait for more, and complete what was taken."""
        path = "/api/v1/pop/queue/q?batch=20&wait=true&timeout=1000"
        status, answer = self.server.call("GET", path)
        if status != 200:
            self.refused.append(("pop", status, answer["error"]))
            time.sleep(0.05)
            return
        self.popped |= {message["data"] for message in answer["messages"]}
        names = ("transactionId", "partitionId", "leaseId")
        answers = [{name: message[name] for name in names} for message in answer["messages"]]
        self.server.call("POST", "/api/v1/ack/batch", {"acknowledgments": answers})

    def get_on(self, count: int = 30) -> None:
        """Wait until more is accepted and delivered."""
        pushed, popped = len(self.accepted) + count, len(self.popped) + count
        until(lambda: len(self.accepted) >= pushed and len(self.popped) >= popped)

    def come_back(self) -> None:
        back = time.monotonic()
        self.get_on()
        print(f"\ngoing on after {time.monotonic() - back:.1f} s; {len(self.refused)} requests were refused")
        assert time.monotonic() - back < 8

    def check(self, database_url: str) -> None:
        """Each accepted message is there once, and is delivered; nothing is held for longer than a lease."""
        assert all(status == 503 and "connection" in error for _, status, error in self.refused), self.refused
        with psycopg.connect(database_url, autocommit=True) as db:
            ours = "SELECT payload #>> '{}' FROM skep.messages WHERE starts_with(payload #>> '{}', %s)"
            stored = [payload for (payload,) in db.execute(ours, [self._name])]
            assert len(stored) == len(set(stored))
            assert set(self.accepted) <= set(stored)
            deadline = time.monotonic() + LEASE + 4
            while db.execute("SELECT FROM skep.leases LIMIT 1").fetchall() or set(stored) - self.popped:
                assert time.monotonic() < deadline, sorted(set(stored) - self.popped)
                self._pop()


@pytest.fixture(scope="module")
def postgres() -> Generator[Postgres]:
    data_dir = Path(tempfile.mkdtemp(prefix="skep-test-"))
    with embedded.start(data_dir, settings=SETTINGS) as started:
        install(started.url)
        yield Postgres(data_dir, started.url)
    shutil.rmtree(data_dir)


def configure(server: Serve) -> None:
    status, _ = server.call(
        "POST", "/api/v1/configure", {"queue": "q", "options": {"leaseTime": LEASE, "retryLimit": 9}}
    )
    assert status == 201


def kill_postmaster(postgres: Postgres) -> None:
    """The supervisor starts another one; calls under way are still finished."""
    postgres.restart(signal.SIGKILL)


def kill_backend(postgres: Postgres) -> None:
    """PostgreSQL ends all connections, whatever they do, and recovers."""
    with psycopg.connect(postgres.url, autocommit=True) as db:
        busy = "SELECT pid FROM pg_stat_activity WHERE application_name = 'skep' AND state = 'active'"
        ((pid,), *_) = until(lambda: db.execute(busy).fetchall())
        os.kill(pid, signal.SIGKILL)
    until(postgres._is_ready)


@pytest.mark.parametrize("disaster", [kill_postmaster, kill_backend])
def test_the_database_is_killed(postgres: Postgres, tmp_path: Path, disaster: Callable[[Postgres], None]):
    """Section 8: database down is 503 and recovery by itself, nothing lost."""
    with killable(postgres.url, tmp_path / "log") as server:
        configure(server)
        load = Load(server)
        with load.running():
            load.get_on()
            disaster(postgres)
            load.come_back()
        assert load.cut == 0
        load.check(postgres.url)
        assert "Traceback" not in server.log.read_text()


def test_the_database_is_away(database_url: str, postgres_url: str, tmp_path: Path):
    """Longer than a request waits: it is refused, also if it is parked, until the database is back."""
    with killable(database_url, tmp_path / "log") as server:
        configure(server)
        load = Load(server)
        with load.running():
            load.get_on()
            with closed(database_url, postgres_url):
                until(lambda: {"push", "pop"} <= {job for job, _, _ in load.refused})
                assert [server.call("GET", path)[0] for path in ("/health", "/ready")] == [503, 503]
            load.come_back()
        load.check(database_url)


@contextlib.contextmanager
def closed(database_url: str, postgres_url: str) -> Generator[None]:
    """Send everybody out of a database and let nobody in."""
    name = str(conninfo_to_dict(database_url)["dbname"])
    doors = sql.SQL("ALTER DATABASE {name} ALLOW_CONNECTIONS {open}")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(doors.format(name=sql.Identifier(name), open=sql.Literal(False)))  # noqa: FBT003
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(doors.format(name=sql.Identifier(name), open=sql.Literal(True)))  # noqa: FBT003


def test_a_server_is_killed(database_url: str, tmp_path: Path):
    """Another one goes on, and what the dead one's consumers held comes when its lease is over."""
    with killable(database_url, tmp_path / "a") as first, killable(database_url, tmp_path / "b") as second:
        configure(first)
        load = Load(first)
        with load.running():
            load.get_on()
            first.kill()
            load.server = second
            load.get_on()
        load.check(database_url)


def test_a_server_is_asked_to_stop(database_url: str, tmp_path: Path):
    """Who is parked is answered at once, what is in flight is finished, and then it ends well."""
    with killable(database_url, tmp_path / "log") as server, ThreadPoolExecutor(10) as threads:
        server.push("q", "before")
        polls = [threads.submit(server.pop, f"none{number}", "wait=true&timeout=60000") for number in range(5)]
        with psycopg.connect(database_url) as lock:
            lock.execute("LOCK TABLE skep.messages IN EXCLUSIVE MODE")
            pushes = [threads.submit(server.push, "q", number) for number in range(3)]
            with psycopg.connect(database_url, autocommit=True) as db:
                until(lambda: db.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())
            time.sleep(0.3)  # the others have come as well
            asked = time.monotonic()
            ended = threads.submit(server.terminate)
            assert [poll.result(3) for poll in polls] == [[]] * 5
            assert time.monotonic() - asked < 2
            assert not any(push.done() for push in pushes)
        assert [push.result(3)[0] for push in pushes] == [201] * 3
        assert ended.result() == 0
        assert time.monotonic() - asked < 5
    assert "Skep has stopped." in (tmp_path / "log").read_text()
    with psycopg.connect(database_url) as db:
        assert db.execute("SELECT count(*) FROM skep.messages").fetchall() == [(4,)]


def workers(server: Serve) -> set[int]:
    """Return who answers, as far as it can be seen."""
    names = (server.call("GET", "/health")[1]["worker_id"] for _ in range(20))
    return {int(name.rpartition(":")[2]) for name in names}


def test_a_worker_is_killed(database_url: str, tmp_path: Path):
    """The port stays open, and another one takes its place."""
    with killable(database_url, tmp_path / "log", "--workers", "2") as server:
        before = until(lambda: found if len(found := workers(server)) == 2 else None)
        os.kill(victim := min(before), signal.SIGKILL)
        until(lambda: victim not in workers(server))
        for number in range(20):
            assert server.push("q", number)[0] == 201
        until(lambda: len(workers(server) - {victim}) == 2)
        assert server.terminate() == 0


def test_the_parent_of_workers_is_killed(database_url: str, tmp_path: Path):
    """They follow it, or nobody could ever stop them, and the port is free for the next server."""
    flags = ("--workers", "2", "--log-format", "json")
    with killable(database_url, tmp_path / "log", *flags) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            assert connection.recv(1000)
        server.kill()
        until(lambda: is_free(server.port))
    warning = next(line for line in server.log.read_text().splitlines() if "Invalid HTTP request" in line)
    assert json.loads(warning)["level"] == "warning"
    with killable(database_url, tmp_path / "next", port=server.port) as following:
        assert following.push("q", 1)[0] == 201


def is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
