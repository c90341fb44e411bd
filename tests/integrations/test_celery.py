"""The real Celery, with its worker processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from celery import Celery
from kombu.connection import Connection
from psycopg.conninfo import conninfo_to_dict

from skep import Skep
from skep.integrations.celery import broker
from skep.message import QUEUE_MODE

ROOT = Path(__file__).parents[2]
APP = "tests.integrations.celery_app"


class Workers:
    """An application of Celery on a new database, and its workers."""

    def __init__(self, url: str, stack: ExitStack, log_dir: Path) -> None:
        self.url = url
        self.app = Celery(broker=broker(url))
        self.mq = stack.enter_context(Skep(url))
        self.connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        self.connection.execute(
            "CREATE TABLE ran (id bigint GENERATED ALWAYS AS IDENTITY, name text, what text, pid integer)"
        )
        self._stack = stack
        self._log_dir = log_dir

    def send(self, task: str, *arguments: object, **options: Any) -> None:
        self.app.send_task(f"{APP}.{task}", arguments, **options)

    def start(self, *options: str, app: str = APP, cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-l", "INFO", *options]
        return self._stack.enter_context(self._running(command, cwd))

    @contextmanager
    def _running(self, command: list[str], cwd: Path) -> Generator[subprocess.Popen[bytes]]:
        with (self._log_dir / "worker.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=os.environ | {"SKEP_DATABASE_URL": self.url},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ran(self, what: str = "ended") -> list[str]:
        rows = self.connection.execute("SELECT name FROM ran WHERE what = %s ORDER BY name", (what,))
        return [name for (name,) in rows]

    def log(self) -> str:
        return (self._log_dir / "worker.log").read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, (self.ran("began"), self.ran(), self.log())
            time.sleep(0.05)

    def leased(self) -> int:
        return sum(row.leased for row in self.mq.queue("celery").lag(QUEUE_MODE))

    def done(self, queue: str = "celery") -> bool:
        return [row.lag for row in self.mq.queue(queue).lag(QUEUE_MODE)] == [0]


@pytest.fixture
def workers(database_url: str, tmp_path: Path) -> Generator[Workers]:
    parts = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(database_url).items()}
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**{"password": "", "port": "5432"} | parts)
    with ExitStack() as stack:
        made = Workers(url, stack, tmp_path)
        yield made
        made.app.close()


def test_solo(workers: Workers):
    """Tasks, retries, countdowns and failures; after a warm shutdown nothing is left."""
    workers.start("--pool", "solo")
    for name in "abc":
        workers.send("work", name)
    workers.send("fails_twice", "again")
    workers.send("work", "later", countdown=1.5)
    workers.send("rejected", "no")
    workers.send("unknown")
    workers.mq.queue("celery").push({"no": "task"})
    workers.until(lambda: workers.ran() == ["a", "b", "c", "later"] and workers.done())
    assert [workers.ran(f"try {n}") for n in range(4)] == [["again"]] * 3 + [[]]
    assert workers.ran("rejected") == ["no", "no"]
    errors = sorted(letter.error for letter in workers.mq.dead_letters("celery"))
    assert errors == ["not a task of Celery: KeyError('properties')", "rejected by Celery", "rejected by Celery"]


def test_prefork(workers: Workers):
    """Two tasks of one queue at once, longer than their lease, in forked children that send tasks themselves."""
    workers.start("--pool", "prefork", "--concurrency", "2", "--max-tasks-per-child", "1")
    workers.send("late", "a", 4)
    workers.send("work", "b", 4)
    workers.until(lambda: workers.ran("began") == ["a", "b"])
    assert workers.ran() == []
    for name in "cdef":
        workers.send("calls", name)
    everything = ["a", "b", "c's", "d's", "e's", "f's"]
    workers.until(lambda: workers.ran() == everything and workers.done())
    assert workers.ran("began") == ["a", "b", "c", "c's", "d", "d's", "e", "e's", "f", "f's"]
    assert "Traceback" not in workers.log()


def test_a_killed_worker_loses_nothing(workers: Workers):
    """Started and fetched tasks are delivered again when the leases expire."""
    killed = workers.start("--pool", "prefork", "--concurrency", "1")
    workers.send("late", "a", 3)
    workers.send("late", "b")
    workers.until(lambda: workers.ran("began") == ["a"] and workers.leased() == 2)
    os.killpg(killed.pid, signal.SIGKILL)
    workers.connection.execute("DELETE FROM ran")
    workers.start("--pool", "solo")
    workers.until(lambda: workers.ran() == ["a", "b"] and workers.done())
    assert workers.ran("began") == ["a", "b"]


def test_a_warm_shutdown_finishes_started_tasks(workers: Workers):
    stopped = workers.start("--pool", "prefork", "--concurrency", "1")
    for name in "abcde":
        workers.send("late", name, 2 if name == "a" else 0)
    workers.until(lambda: workers.ran("began") == ["a"] and workers.leased() == 2)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(30) == 0
    assert workers.leased() == 0
    assert "a" in workers.ran() == workers.ran("began") != list("abcde")
    workers.start("--pool", "solo")
    workers.until(lambda: workers.ran() == list("abcde") and workers.done())
    assert workers.ran("began") == list("abcde")


def test_workers_share_queues(workers: Workers):
    """A queue of Celery is the queue of Skep with the same name."""
    names = sorted(f"{queue} {number:02}" for queue in ("one", "two") for number in range(20))
    for name in names:
        workers.send("late", name, 0.05, queue=name.partition(" ")[0])
    for _ in range(2):
        workers.start("--pool", "solo", "-Q", "one,two")
    workers.until(lambda: workers.ran() == names and workers.done("one") and workers.done("two"))
    pids = workers.connection.execute("SELECT count(DISTINCT pid) FROM ran").fetchone()
    assert pids == (2,)
    assert workers.ran("began") == names


def test_a_worker_survives_killed_connections(workers: Workers):
    workers.start("--pool", "solo")
    workers.send("work", "a")
    workers.until(lambda: workers.ran() == ["a"])
    workers.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'skep' AND datname = current_database()"
    )
    workers.send("work", "b")
    workers.until(lambda: workers.ran() == ["a", "b"] and workers.done())


def test_fanout_is_refused(workers: Workers):
    with pytest.raises(NotImplementedError, match="does not support fanout exchanges"):
        workers.app.control.ping()


def test_kombu_alone(workers: Workers):
    """Sizes, purge, messages without ack, and a connection that closes with leased messages."""
    with Connection(broker(workers.url)) as connection:
        queue = connection.SimpleQueue("simple")
        for number in range(5):
            queue.put({"number": number})
        assert queue.qsize() == 5
        assert queue.get(timeout=5).payload == {"number": 0}
        done = queue.get(timeout=5)
        done.ack()
        channel = connection.channel()
        free = channel.basic_get("simple", no_ack=True)
        assert free is not None
        assert free.payload == {"number": 2}
    with Connection(broker(workers.url)) as connection, connection.SimpleQueue("simple") as queue:
        again = queue.get(timeout=5)
        assert (again.payload, again.delivery_info["redelivered"]) == ({"number": 0}, False)
        again.ack()
        assert queue.qsize() == queue.clear() == 2
        with pytest.raises(queue.Empty):
            queue.get_nowait()


FORK = """
import os, sys
from kombu.connection import Connection
from skep.integrations.celery import broker

connection = Connection(broker(sys.argv[1]))
queue = connection.SimpleQueue("simple")
queue.put(1)
message = queue.get(timeout=9)
if not (child := os.fork()):
    connection.release()
    os._exit(0)
os.waitpid(child, 0)
message.ack()
queue.put(2)
print(queue.get(timeout=9).payload)
connection.release()
"""


def test_a_forked_child_leaves_the_connections_of_its_parent_alone(workers: Workers):
    done = subprocess.run(
        [sys.executable, "-c", FORK, workers.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


def test_the_example(workers: Workers):
    environment = os.environ | {"SKEP_DATABASE_URL": workers.url}
    subprocess.run([sys.executable, "-W", "error", ROOT / "examples/celery_tasks.py"], env=environment, check=True)
    workers.start("--pool", "solo", app="celery_tasks", cwd=ROOT / "examples")
    workers.until(lambda: re.findall("billing [0-9]", workers.log()) == ["billing 0", "billing 1", "billing 2"])
