"""The connection of a driver or a worker: one for each process, reopened after the database has restarted."""

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any, LiteralString, TypeVar

import psycopg

from skep.engine.install import patience, verify
from skep.errors import SkepError, explained

PATIENCE = 120.0  # seconds for which the database may be unavailable
log = logging.getLogger("skep.spark")
T = TypeVar("T")

READ_SNAPSHOT: LiteralString = """
    SELECT database, snapshot::text, queue_ids, queue_names
    FROM skep._read_snapshot(%(queues)s, %(pattern)s, %(namespace)s, %(task)s)
"""
READ_WINDOW: LiteralString = """
    SELECT * FROM skep._read_window(
        queue_ids => %(queue_ids)s, since => %(since)s::pg_snapshot, until => %(until)s::pg_snapshot,
        start => %(start)s::jsonb, stop => %(stop)s::jsonb, group_name => %(group)s)
"""
READ: LiteralString = "SELECT * FROM skep._read(%(partition_ids)s, %(firsts)s, %(ends)s, %(payloads)s)"
READ_PACKED: LiteralString = "SELECT * FROM skep._read_packed(%(partition_ids)s, %(firsts)s, %(ends)s, %(payloads)s)"
PARTITION_NAMES: LiteralString = "SELECT * FROM skep._partition_names(%(partition_ids)s)"
OFFSETS_AT: LiteralString = "SELECT skep._offsets_at(%(partition_ids)s, %(instant)s::timestamptz)"
TIMES: LiteralString = "SELECT oldest, newest FROM skep._times(%(partition_ids)s, %(firsts)s, %(ends)s)"
ARCHIVED_RUNS: LiteralString = """
    SELECT partition_id, queue, partition, first_offset, end_offset, path
    FROM skep._archived_runs(%(partition_ids)s, %(firsts)s, %(ends)s)
"""
ARCHIVED_PARTITIONS: LiteralString = """
    SELECT partition_id, first_offset, end_offset FROM skep._archived_partitions(%(queues)s)
"""
GROUP_EXISTS: LiteralString = "SELECT skep._group_exists(%(group)s)"
SUBSCRIBE: LiteralString = """
    SELECT skep.subscribe(group_name => %(group)s, queue => %(queue)s, namespace => %(namespace)s, task => %(task)s,
                          mode => 'all', heartbeat_timeout => %(timeout)s)
"""
HEARTBEAT: LiteralString = "SELECT count(*) FROM skep.heartbeat(%(group)s)"
MOVE_GROUP: LiteralString = "SELECT skep._move_group(%(group)s, %(partition_ids)s, %(firsts)s, %(ends)s)"
OPEN_SINK: LiteralString = "SELECT skep._open_sink(%(sink)s, %(query)s)"
STAGE: LiteralString = """
    SELECT skep._stage_messages(
        sink => %(sink)s, batch => %(batch)s, chunk => %(chunk)s, queues => %(queues)s, partitions => %(partitions)s,
        counts => %(counts)s::integer[], payloads => %(payloads)s, transaction_ids => %(transaction_ids)s,
        headers => %(headers)s::jsonb[], trace_ids => %(trace_ids)s::uuid[], producers => %(producers)s)
"""
PUBLISH: LiteralString = "SELECT skep._publish_batch(%(sink)s, %(query)s, %(batch)s, %(chunks)s::uuid[], %(counts)s)"
CLEAR_SINK: LiteralString = "SELECT skep._clear_sink(%(sink)s, %(batch)s)"
DROP_SINK: LiteralString = "SELECT skep._drop_sink(%(sink)s)"


class SparkDatabase:
    """Runs statements that may be repeated: retries them on a new connection while the database is unavailable."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None

    def rows(self, statement: LiteralString, /, **arguments: object) -> list[tuple[Any, ...]]:
        return self.retry(lambda connection: connection.execute(statement, arguments, binary=True).fetchall())

    def one(self, statement: LiteralString, /, **arguments: object) -> tuple[Any, ...]:
        (row,) = self.rows(statement, **arguments)
        return row

    def retry(self, call: Callable[[psycopg.Connection], T]) -> T:
        deadline = time.monotonic() + PATIENCE
        for attempt in range(1_000_000):
            try:
                with explained():
                    return call(self._open())
            except SkepError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                log.warning("%s; retrying", error)
            self.close()
            time.sleep(min(0.1 * 2**attempt, 2))
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._url, autocommit=True, prepare_threshold=None, application_name="skep spark",
                connect_timeout=patience(self._url),
            )  # fmt: skip
            verify(self._connection)
        return self._connection


def database(url: str) -> SparkDatabase:
    """Return the connection of this process."""
    return _database(url, os.getpid())


@functools.cache
def _database(url: str, process: int) -> SparkDatabase:  # noqa: ARG001  # a fork must not share a connection
    return SparkDatabase(url)
