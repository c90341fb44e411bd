"""Tables of the database as frames: each task asks for a piece of one, and the driver holds nothing of it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any, LiteralString, NamedTuple

import psycopg
from pyspark.sql import DataFrame, SparkSession

from skep.errors import explained
from skep.spark.arrow import empty, from_rows
from skep.spark.database import database

AT_ONCE = 10_000
LANES, QUEUES, LETTERS, SLICES = 2_000, 50, 50_000, 16  # in a piece; slices of time, in all
Piece = Mapping[str, object]


class Table(NamedTuple):
    """What to ask for, and the columns that come."""

    statement: LiteralString
    columns: str


PROGRESS = Table(
    """
    SELECT lane.id, g.group_name, g.status, g.start_offset, g.cursor, g.pending_from
    FROM pg_catalog.unnest(%(lanes)s::bigint[]) AS lane (id)
    LEFT JOIN skep._group_progress(%(lanes)s) g ON g.partition_id = lane.id
    """,
    "partition_id long, group_name string, status string, start_offset long, cursor long, pending_from long",
)
SAMPLES = Table(
    """
    SELECT queue, group_name, at, total, lag, oldest_at FROM skep.samples
    WHERE queue = ANY (%(queues)s) AND at >= %(since)s AND at < %(until)s
    """,
    "queue string, group_name string, at timestamp, total long, lag long, oldest_at timestamp",
)
LEASES = Table(
    """
    SELECT q.name, g.group_name, p.name, g.partition_id, g.first_offset, g.end_offset, g.attempt, g.reason,
           g.first_pushed_at, g.last_pushed_at, g.leased_at, g.finished_at, done.froms, done.tos
    FROM skep.lease_log g
    JOIN skep.queues q ON q.id = g.queue_id
    LEFT JOIN skep.partitions p ON p.id = g.partition_id
    CROSS JOIN LATERAL (
        SELECT pg_catalog.array_agg(pg_catalog.lower(piece)) AS froms,
               pg_catalog.array_agg(pg_catalog.upper(piece)) AS tos
        FROM pg_catalog.unnest(int8multirange(int8range(g.first_offset, g.end_offset)) - g.returned) AS piece) done
    WHERE g.queue_id = ANY (%(queue_ids)s)
      AND g.finished_at >= %(since)s AND g.finished_at < %(until)s
    """,
    "queue string, group_name string, partition string, partition_id long, first_offset long, end_offset long, "
    "attempt int, reason string, first_pushed_at timestamp, last_pushed_at timestamp, leased_at timestamp, "
    "finished_at timestamp, done_from array<bigint>, done_to array<bigint>",
)
LETTERS_OF = Table(
    """
    SELECT queue, group_name, partition, "offset", left(error, 2000), attempts, failed_at FROM skep.dead_letters
    WHERE id >= %(first)s AND id < %(end)s AND queue = ANY (%(queues)s)
      AND failed_at >= %(since)s AND failed_at < %(until)s
    """,
    "queue string, group_name string, partition string, offset long, error string, attempts int, failed_at timestamp",
)
# Also letters that are not there any more: whatever became of them, their messages were given up.
GIVEN_UP = Table(
    """
    SELECT queue, group_name, partition, "offset" FROM skep.dead_letters WHERE queue = ANY (%(queues)s)
    UNION SELECT queue, group_name, partition, "offset" FROM skep.dead_letter_audit WHERE queue = ANY (%(queues)s)
    """,
    "queue string, group_name string, partition string, offset long",
)
LANE_IDS: LiteralString = "SELECT partition_id FROM skep.partition_list WHERE queue = ANY (%(queues)s) ORDER BY 1"
LOG_TIMES: LiteralString = """
    SELECT min(edge.oldest), max(edge.newest) FROM pg_catalog.unnest(%(queue_ids)s::int[]) AS queue (id)
    CROSS JOIN LATERAL (SELECT min(finished_at) AS oldest, max(finished_at) AS newest
                        FROM skep.lease_log WHERE queue_id = queue.id) edge
"""
LETTER_IDS: LiteralString = "SELECT min(id), max(id) FROM skep.dead_letters"


def frame(spark: SparkSession, url: str, table: Table, pieces: Sequence[Piece]) -> DataFrame:
    """Return what tasks get for these arguments, one task for each."""
    if not pieces:
        return empty(spark, table.columns)
    rows = spark.sparkContext.parallelize(pieces, len(pieces)).flatMap(partial(_rows, url, table.statement))
    return from_rows(spark, rows, table.columns)


def _rows(url: str, statement: LiteralString, arguments: Piece) -> Iterator[tuple[Any, ...]]:
    with (
        explained(),
        psycopg.connect(url, application_name="skep analytics") as connection,
        connection.cursor("rows", binary=True) as cursor,
    ):
        cursor.itersize = AT_ONCE
        yield from cursor.execute(statement, arguments)


def by_lanes(url: str, queues: Sequence[str]) -> list[Piece]:
    lanes = [lane for (lane,) in database(url).rows(LANE_IDS, queues=list(queues))]
    return [{"lanes": lanes[start : start + LANES]} for start in range(0, len(lanes), LANES)]


def by_queues(queues: Sequence[str], since: datetime, until: datetime) -> list[Piece]:
    parts = [list(queues[start : start + QUEUES]) for start in range(0, len(queues), QUEUES)]
    return [{"queues": part, "since": since, "until": until} for part in parts]


def by_finish(url: str, queue_ids: Sequence[int], since: datetime, until: datetime) -> list[Piece]:
    """Cut the log of leases into slices of time."""
    oldest, newest = database(url).one(LOG_TIMES, queue_ids=list(queue_ids))
    if oldest is None:
        return []
    start, end = max(oldest, since), min(newest + timedelta(microseconds=1), until)
    edges = [start + (end - start) * (number / SLICES) for number in range(SLICES)] + [end]
    slices = pairwise(edges)
    return [{"queue_ids": list(queue_ids), "since": a, "until": b} for a, b in slices if a < b]


def by_letter(url: str, queues: Sequence[str], since: datetime, until: datetime) -> list[Piece]:
    lowest, highest = database(url).one(LETTER_IDS)
    if lowest is None:
        return []
    shared = {"queues": list(queues), "since": since, "until": until}
    return [{"first": first, "end": first + LETTERS, **shared} for first in range(lowest, highest + 1, LETTERS)]
