"""Eight connections, each in its own process, that run one kind of call for a few seconds."""

import multiprocessing as mp
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

PAYLOAD = '{"order": "' + "x" * 186 + '"}'  # 200 bytes
PARTITIONS = 100_000
BATCH = 100
BARE_INSERT = """
    INSERT INTO bare SELECT %s, n, clock_timestamp(), p::jsonb
    FROM unnest(%s::text[]) WITH ORDINALITY AS item (p, n)
"""
POP = """
    SELECT partition, "offset", payload::text, attempt, lease FROM skep.pop('hot', 'bench', batch => %s::int)
"""

Call = Callable[["Session"], int]  # makes one call, returns the number of messages


class Session:
    """The connection of a worker, and the state of its calls."""

    def __init__(self, url: str, number: int) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.cursor = self.connection.cursor(binary=True)
        self.number = number
        self.random = random.Random(number)
        self.calls = 0
        self.schedstat = Path(f"/proc/{self.connection.info.backend_pid}/schedstat")

    def cpu(self) -> int:
        """Return the nanoseconds that the backend has used so far."""
        return int(self.schedstat.read_text().split()[0])

    def run(self, sql: str, *arguments: Any) -> list[Any]:
        """Run a prepared statement with binary results, so that the client costs the same for all kinds of calls."""
        self.cursor.execute(sql, arguments, prepare=True)  # type: ignore[arg-type]
        self.calls += 1
        return self.cursor.fetchall() if self.cursor.description else []


def bare(session: Session) -> int:
    """Insert the same rows into a table with a primary key and no queue logic."""
    session.run(BARE_INSERT, session.random.getrandbits(62), [PAYLOAD] * BATCH)
    return BATCH


def _push(session: Session, queue: str, partitions: list[str]) -> int:
    session.run(
        "SELECT * FROM skep.push_many(%s, %s, %s::text[]::jsonb[])",
        [queue] * len(partitions),
        partitions,
        [PAYLOAD] * len(partitions),
    )
    return len(partitions)


def push_one_partition(session: Session) -> int:
    return _push(session, "hot", [f"p-{session.number}"] * BATCH)


def push_many_partitions(session: Session) -> int:
    return _push(session, "wide", [f"p-{n}" for n in session.random.sample(range(PARTITIONS), BATCH)])


def push_single(session: Session) -> int:
    return _push(session, "hot", [f"p-{session.number}"])


def push_fanned_out(session: Session) -> int:
    return _push(session, "fanned", [f"p-{session.number}"] * BATCH)


def pop_ack(session: Session) -> int:
    messages = session.run(POP, BATCH)  # payloads as they are stored: push does not encode JSON either
    if messages:
        session.run("SELECT skep.ack(%s)", messages[0][4])
    return len(messages)


def _serve(pipe: Connection, url: str, number: int) -> None:
    session = Session(url, number)
    while order := pipe.recv():
        call, seconds = order
        moved, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            moved += call(session)
        pipe.send(moved)


class Crew:
    """Workers that all run the same call for the same time."""

    def __init__(self, url: str, size: int) -> None:
        context = mp.get_context("spawn")
        self.pipes: list[Connection] = []
        for number in range(size):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, url, number), daemon=True).start()
            self.pipes.append(ours)

    def rate(self, call: Call, seconds: float) -> float:
        """Return the messages per second of all workers together."""
        for pipe in self.pipes:
            pipe.send((call, seconds))
        return sum(pipe.recv() for pipe in self.pipes) / seconds

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)


@contextmanager
def crew(url: str, size: int = 8) -> Iterator[Crew]:
    workers = Crew(url, size)
    try:
        yield workers
    finally:
        workers.stop()
