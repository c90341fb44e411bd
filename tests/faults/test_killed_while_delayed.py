"""Database and server are killed while delayed messages are stored and appended: each message is stored once.

Producers push with a short delay, by the client, by the outbox and by HTTP, and repeat a push until it succeeds. Two
sessions append due messages, a few at a time, so that a kill is likely to interrupt one of them; consumers append as
well. Meanwhile PostgreSQL and `skep serve` are killed.
"""

import http.client
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from skep import Skep
from skep.errors import SkepError
from tests.engine.threads import until
from tests.engine.verbs import broken, call
from tests.faults.database import Server, running
from tests.server.killable import Serve, killable

Q = "reminders"
KILLS = 4
PARTITIONS = 5
LOST = (psycopg.Error, SkepError, OSError, http.client.HTTPException)
BACKLOG = """
    SELECT (SELECT count(*) FROM skep.delayed_messages) + (SELECT count(*) FROM skep.outbox)
           + (SELECT coalesce(sum(lag), 0) FROM skep.lag('g', %s))
"""
OUTBOX = """
    INSERT INTO skep.outbox (queue, partition, payload, transaction_id, delay)
    VALUES (%(queue)s, %(partition)s, to_jsonb(%(name)s::text), %(name)s, %(delay)s)
"""


class Crew:
    """Producers, appenders and a consumer, each in its own thread, which continue after every kill."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.mq = Skep(url, poll_interval=0.1)
        self.serve: Serve | None = None
        self.stopping = threading.Event()  # for the producers
        self.done = threading.Event()
        self.pushed: set[str] = set()  # confirmed
        self.delivered: Counter[str] = Counter()
        self.again: list[str] = []  # delivered after a confirmed ack
        self.appended: Counter[str] = Counter()
        self.failures: list[BaseException] = []

    def produce(self, kind: str, push: Callable[[str, str, float], None]) -> None:
        rng = random.Random(kind)
        for number in itertools.count():
            if self.stopping.is_set():
                return
            name, partition, delay = f"{kind} {number}", str(rng.randrange(PARTITIONS)), rng.uniform(0.01, 0.5)
            while not self._try(lambda: push(name, partition, delay)):  # noqa: B023  # it is called here
                pass
            self.pushed.add(name)

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except LOST:
            time.sleep(0.05)
            return False
        return True

    def push(self, name: str, partition: str, delay: float) -> None:
        self.mq.queue(Q).push(name, partition=partition, delay=delay, transaction_id=name)

    def insert(self, level: psycopg.IsolationLevel) -> Callable[[str, str, float], None]:
        def insert(name: str, partition: str, delay: float) -> None:
            with psycopg.connect(self.url) as own:
                own.isolation_level = level
                own.execute(OUTBOX, {"queue": Q, "partition": partition, "name": name, "delay": delay})

        return insert

    def post(self, name: str, partition: str, delay: float) -> None:
        item = {"queue": Q, "partition": partition, "payload": name, "transactionId": name, "delay": delay}
        assert self.serve
        status, response = self.serve.call("POST", "/api/v1/push", {"items": [item]})
        if status >= 500:
            raise OSError(response)
        assert (status, response[0]["status"] in ("delayed", "queued", "duplicate")) == (201, True), response

    def append(self, name: str) -> None:
        """Append due messages, and outbox rows that were committed under REPEATABLE READ."""
        while not self.done.is_set():
            with suppress(*LOST), psycopg.connect(self.url, autocommit=True) as connection:
                while not self.done.is_set():
                    self.appended[name] += call(connection, "append_delayed", max_rows=3)[0].messages
                    call(connection, "move_committed_outbox")

    def consume(self) -> None:
        completed: set[str] = set()
        while not self.done.is_set():
            with suppress(*LOST):
                batch = self.mq.queue(Q).pop(group="g", batch=10, wait=0.2, lease_time=2)
                names = [message.payload for message in batch]
                self.again += [name for name in names if name in completed]
                self.delivered.update(names)
                batch.ack()
                completed.update(names)

    @contextmanager
    def at_work(self) -> Generator[None]:
        strict, plain = psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.READ_COMMITTED
        jobs = [
            lambda: self.produce("client", self.push),
            lambda: self.produce("outbox", self.insert(plain)),
            lambda: self.produce("strict outbox", self.insert(strict)),
            lambda: self.produce("http", self.post),
            lambda: self.append("one"),
            lambda: self.append("two"),
            self.consume,
        ]
        threads = [threading.Thread(target=self._guard, args=[job]) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield
            self.stopping.set()
            with psycopg.connect(self.url, autocommit=True) as mq:
                until(
                    lambda: self.failures or mq.execute(BACKLOG, [Q]).fetchall() == [(0,)],
                    "all messages to be consumed",
                )
        finally:
            self.stopping.set()
            self.done.set()
            for thread in threads:
                thread.join()

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  # the test checks it
            self.failures.append(error)


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with running() as started:
        yield started


def test_killed_while_messages_are_appended(server: Server, tmp_path: Path) -> None:
    crew = Crew(server.url)
    with ExitStack() as stack, crew.mq:
        crew.serve = stack.enter_context(killable(server.url, tmp_path / "log 0"))
        with crew.at_work():
            for number in range(1, KILLS + 1):
                _make_progress(crew)
                if number % 2:
                    server.restart(signal.SIGKILL)
                else:
                    port = crew.serve.port
                    crew.serve.kill()
                    crew.serve = stack.enter_context(killable(server.url, tmp_path / f"log {number}", port=port))
            _make_progress(crew)
    assert (crew.failures, crew.again) == ([], [])
    assert min(crew.appended.values()) > 0  # both have appended some, not only the consumer and the server
    with psycopg.connect(server.url, autocommit=True) as mq:
        stored = [name for (name,) in mq.execute("SELECT transaction_id FROM skep.messages").fetchall()]
        assert Counter(stored) == Counter({*stored})
        assert {*stored} >= crew.pushed
        assert ({*crew.delivered}, broken(mq)) == ({*stored}, {})


def _make_progress(crew: Crew) -> None:
    """Wait for progress of every producer and of the consumer."""
    before, delivered = _by_kind(crew), crew.delivered.total()
    until(
        lambda: (
            crew.failures
            or (
                crew.delivered.total() > delivered + 50
                and all(number > before[kind] + 5 for kind, number in _by_kind(crew).items())
            )
        ),
        "progress of all",
    )
    assert crew.failures == []


def _by_kind(crew: Crew) -> Counter[str]:
    return Counter(name.rstrip("0123456789") for name in [*crew.pushed])
