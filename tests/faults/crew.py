"""Producers and consumers of every kind, each in a thread with its own client, while the test injects faults."""

import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager

import psycopg

from skep import Message, Skep
from tests.engine.threads import until
from tests.engine.verbs import configure
from tests.faults.ledger import assert_everything_once, count
from tests.faults.worker import LEASE_SECONDS, LEDGER, Ledger, Producer


class Handlers:
    """Consumes with a handler, in its own group: each message at least once, in order."""

    def __init__(self, url: str, queue: str) -> None:
        self.mq = Skep(url, poll_interval=0.1)
        self.came: dict[str, list[int]] = defaultdict(list)
        self.mq.consumer(queue, group="handlers", lease_time=LEASE_SECONDS, concurrency=2)(self._handle)

    def _handle(self, message: Message) -> None:
        self.came[message.partition].append(message.payload)

    def run(self) -> None:
        self.mq.run()

    def firsts(self) -> dict[str, list[int]]:
        """Return the delivered numbers, without repetitions."""
        return {partition: list(dict.fromkeys(numbers)) for partition, numbers in self.came.items()}


class Crew:
    """Four producers (plain and buffered, sync and async) and three groups of consumers: sync, async, and handlers."""

    GROUPS = ("of threads", "of tasks")

    def __init__(self, url: str, queue: str) -> None:
        self.url, self.queue = url, queue
        self.producers = [
            Producer("sync", url, queue, "plain", buffered=False),
            Producer("sync", url, queue, "buffer", buffered=True),
            Producer("async", url, queue, "plain, async", buffered=False),
            Producer("async", url, queue, "buffer, async", buffered=True),
        ]
        self.ledgers = [Ledger("sync", url, queue, "of threads"), Ledger("async", url, queue, "of tasks")]
        self.handlers = Handlers(url, queue)
        self.failures: list[BaseException] = []

    def produced(self) -> dict[str, int]:
        return {producer.partition: producer.count for producer in self.producers}

    def make_progress(self, observer: psycopg.Connection, number: int = 100) -> None:
        """Wait until every producer and every group has processed this many more messages."""
        counts = self.produced()
        seen = {group: count(observer, group) for group in self.GROUPS}
        until(
            lambda: all(p.count >= counts[p.partition] + number // 4 for p in self.producers),
            "progress of the producers",
        )
        until(
            lambda: all(count(observer, group) >= seen[group] + number for group in self.GROUPS),
            "progress of the groups",
        )
        assert self.failures == []

    def _guard(self, job: Producer | Ledger | Handlers) -> None:
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001  # the test checks it
            self.failures.append(error)

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Run during the block; then stop the producers, and the consumers when they have processed everything."""
        jobs = [*self.producers, *self.ledgers, self.handlers]
        threads = [threading.Thread(target=self._guard, args=[job]) for job in jobs]
        for thread in threads:
            thread.start()
        try:
            yield
            for producer in self.producers:
                producer.stop.set()
            for thread in threads[: len(self.producers)]:
                thread.join()
            self._finish()
        finally:
            for job in (*self.producers, *self.ledgers):
                job.stop.set()
            self.handlers.mq.close()
            for thread in threads:
                thread.join()
        assert self.failures == []

    def _finish(self) -> None:
        produced = self.produced()
        with psycopg.connect(self.url, autocommit=True) as observer:
            assert_everything_once(observer, self.queue, self.GROUPS, produced)
        everything = {partition: list(range(number)) for partition, number in produced.items()}
        until(lambda: self.handlers.firsts() == everything, "the handlers to finish")


def prepare(url: str, queue: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS ledger")
        connection.execute(LEDGER)
        configure(connection, queue, retry_limit=1000, retry_delay=0.001)
