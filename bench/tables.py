"""The queues that `bench.peers` compares, by the statements that their users run."""

import json
import random
import uuid
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Protocol

import psycopg

from bench.workers import PAYLOAD
from skep.client import calls as client_calls
from skep.engine.install import install
from skep.server.work import calls as server_calls

LEASE_SECONDS = 300
PARTITIONS = 100  # of the push to many partitions
GROUP = "bench"

Run = Callable[..., list[Any]]  # (SQL, arguments as a mapping) -> rows
Lease = Any  # identifies what a pop returned, for the ack


class Table(Protocol):
    """A queue behind one connection. `pop` returns what `ack` needs, None if the queue was empty."""

    @property
    def name(self) -> str: ...
    def prepare(self, connection: psycopg.Connection[Any]) -> None: ...
    def push(self, run: Run, size: int) -> None: ...


class Queue(Table, Protocol):
    """A table that is consumed too."""

    def pop(self, run: Run, size: int) -> Lease | None: ...
    def ack(self, run: Run, lease: Lease) -> None: ...


class BareInsert:
    """The same rows into a table with a primary key and nothing else: the least that a durable push can cost."""

    name = "bare insert"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("""
            CREATE TABLE bare (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(),
                payload jsonb NOT NULL)
        """)

    def push(self, run: Run, size: int) -> None:
        if size == 1:
            run("INSERT INTO bare (payload) VALUES (%(payload)s::jsonb) RETURNING id", payload=PAYLOAD)
        else:
            insert = "INSERT INTO bare (payload) SELECT p::jsonb FROM unnest(%(payloads)s::text[]) p RETURNING id"
            run(insert, payloads=[PAYLOAD] * size)


class SkipLocked:
    """The job table that many projects write: rows are marked as taken by SKIP LOCKED and deleted by the ack."""

    name = "SKIP LOCKED table"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("""
            CREATE TABLE jobs (
                id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(),
                status text NOT NULL DEFAULT 'ready', visible_at timestamptz, attempts integer NOT NULL DEFAULT 0,
                payload jsonb NOT NULL);
            CREATE INDEX ON jobs (id) WHERE status = 'ready';
        """)

    def push(self, run: Run, size: int) -> None:
        if size == 1:
            run("INSERT INTO jobs (payload) VALUES (%(payload)s::jsonb) RETURNING id", payload=PAYLOAD)
        else:
            insert = "INSERT INTO jobs (payload) SELECT p::jsonb FROM unnest(%(payloads)s::text[]) p RETURNING id"
            run(insert, payloads=[PAYLOAD] * size)

    def pop(self, run: Run, size: int) -> Lease | None:
        pop = """
            WITH next AS (
                SELECT id FROM jobs WHERE status = 'ready' ORDER BY id LIMIT %(size)s::int FOR UPDATE SKIP LOCKED)
            UPDATE jobs SET status = 'taken', visible_at = now() + %(seconds)s * interval '1 second',
                            attempts = attempts + 1
            FROM next WHERE jobs.id = next.id RETURNING jobs.id, jobs.payload, jobs.attempts
        """
        return [row[0] for row in run(pop, size=size, seconds=LEASE_SECONDS)] or None

    def ack(self, run: Run, lease: Lease) -> None:
        if len(lease) == 1:
            run("DELETE FROM jobs WHERE id = %(id)s RETURNING id", id=lease[0])
        else:
            run("DELETE FROM jobs WHERE id = ANY (%(ids)s::bigint[]) RETURNING id", ids=lease)


class Pgmq:
    """The SQL of the extension itself, as the package pgmq on PyPI carries it for installing without the extension."""

    @property
    def name(self) -> str:
        return f"pgmq {files('pgmq').joinpath('sql', 'VERSION').read_text().strip()}"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(files("pgmq").joinpath("sql", "pgmq.sql").read_bytes())
        connection.execute("SELECT pgmq.create('bench')")

    def push(self, run: Run, size: int) -> None:
        if size == 1:
            run("SELECT * FROM pgmq.send('bench', %(payload)s::jsonb)", payload=PAYLOAD)
        else:
            run("SELECT * FROM pgmq.send_batch('bench', %(payloads)s::text[]::jsonb[])", payloads=[PAYLOAD] * size)

    def pop(self, run: Run, size: int) -> Lease | None:
        read = "SELECT msg_id, message, read_ct FROM pgmq.read('bench', %(seconds)s::int, %(size)s::int)"
        return [row[0] for row in run(read, seconds=LEASE_SECONDS, size=size)] or None

    def ack(self, run: Run, lease: Lease) -> None:
        if len(lease) == 1:
            run("SELECT pgmq.delete('bench', %(id)s::bigint)", id=lease[0])
        else:
            run("SELECT * FROM pgmq.delete('bench', %(ids)s::bigint[])", ids=lease)


class SkepSql:
    """The functions that people call in psql. One partition, one group."""

    name = "Skep, SQL functions"
    queue = "sql"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        pass

    def push(self, run: Run, size: int) -> None:
        if size == 1:
            run("SELECT * FROM skep.push(%(queue)s, %(payload)s::jsonb)", queue=self.queue, payload=PAYLOAD)
        else:
            self._push_many(run, self.queue, ["Default"] * size)

    def push_wide(self, run: Run, size: int) -> None:
        """One message to each of so many partitions, of a queue that the pops do not see."""
        self._push_many(run, f"{self.queue} wide", _partitions(size))

    def _push_many(self, run: Run, queue: str, partitions: list[str]) -> None:
        push = "SELECT * FROM skep.push_many(%(queues)s, %(partitions)s, %(payloads)s::text[]::jsonb[])"
        size = len(partitions)
        run(push, queues=[queue] * size, partitions=partitions, payloads=[PAYLOAD] * size)

    def pop(self, run: Run, size: int) -> Lease | None:
        pop = "SELECT lease, payload, attempt FROM skep.pop(%(queue)s, %(group)s, batch => %(size)s::int)"
        rows = run(pop, queue=self.queue, group=GROUP, size=size)
        return rows[0][0] if rows else None

    def ack(self, run: Run, lease: Lease) -> None:
        run("SELECT skep.ack(%(lease)s)", lease=lease)


class SkepClient:
    """The calls of `skep.client`, with its arguments."""

    name = "Skep, the client's calls"
    queue = "client"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        pass

    def push(self, run: Run, size: int) -> None:
        run(client_calls.PUSH, messages=_messages(self.queue, ["Default"] * size))

    def push_wide(self, run: Run, size: int) -> None:
        run(client_calls.PUSH, messages=_messages(f"{self.queue} wide", _partitions(size)))

    def pop(self, run: Run, size: int) -> Lease | None:
        absent = dict.fromkeys(
            ("partition", "namespace", "task", "lease_time", "subscription_mode", "subscription_from")
        )
        arguments = {"queue": self.queue, "group": GROUP, "batch": size, "partitions": 1, "auto_ack": False}
        rows = run(client_calls.POP, **arguments, **absent)
        return rows[0][12] if rows else None

    def ack(self, run: Run, lease: Lease) -> None:
        run(client_calls.ACK, lease=lease, id=None)


class SkepServer:
    """The calls of `skep serve` for one HTTP request each; it merges many requests into one call under load."""

    name = "Skep, the server's calls"
    queue = "server"

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        pass

    def push(self, run: Run, size: int) -> None:
        run(server_calls.PUSH, messages=_messages(self.queue, ["Default"] * size), has_delays=False)

    def push_wide(self, run: Run, size: int) -> None:
        run(server_calls.PUSH, messages=_messages(f"{self.queue} wide", _partitions(size)), has_delays=False)

    def pop(self, run: Run, size: int) -> Lease | None:
        absent = dict.fromkeys(("names", "namespace", "task", "lease_time", "mode", "start"))
        arguments = {"queue": self.queue, "group": GROUP, "batches": [size], "partitions": [1]}
        rows = run(server_calls.POP, binary=True, **arguments, **absent, auto_ack=False, conflate=False)
        return rows[0] if rows else None

    def ack(self, run: Run, lease: Lease) -> None:
        messages = json.loads(b"[" + bytes(lease[6]) + b"]")
        run(
            server_calls.ACK_LEASE,
            partition_id=messages[0]["partitionId"],
            transaction_ids=[message["transactionId"] for message in messages],
            lease=str(uuid.UUID(messages[0]["leaseId"])),
        )


def _partitions(size: int) -> list[str]:
    return [f"p{number}" for number in random.Random(0).sample(range(PARTITIONS), size)]


def _messages(queue: str, partitions: list[str]) -> str:
    """Messages as the client and the server send them: one JSON array."""
    items = (
        f'{{"queue":{json.dumps(queue)},"partition":{json.dumps(name)},"payload":{PAYLOAD}}}' for name in partitions
    )
    return f"[{','.join(items)}]"


def create_all(connection: psycopg.Connection[Any], url: str) -> None:
    """Install Skep and create what every table needs."""
    install(url)
    for table in TABLES:
        table.prepare(connection)


PEER = Pgmq()
QUEUES: list[Queue] = [SkipLocked(), PEER, SkepSql(), SkepClient(), SkepServer()]
WIDE = [SkepSql(), SkepClient(), SkepServer()]
TABLES: list[Table] = [BareInsert(), *QUEUES]
