"""Tables of the database as frames: each task asks for a piece of one, and the driver holds nothing of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, LiteralString, NamedTuple
from uuid import uuid4

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skep.errors import explained
from skep.spark.arrow import RecordBatch, arrow_schema, empty, pa
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
    SELECT lane.id, g.group_name, g.status, g.start_offset, g.cursor, g.owed_from
    FROM unnest(%(lanes)s::bigint[]) AS lane (id) LEFT JOIN skep.group_progress(%(lanes)s) g ON g.partition_id = lane.id
    """,
    "partition_id long, group_name string, status string, start_offset long, cursor long, owed_from long",
)
SAMPLES = Table(
    """
    SELECT queue, group_name, at, total, lag, oldest_at FROM skep.samples
    WHERE queue = ANY (%(queues)s) AND at >= %(since)s::timestamptz AND at < %(until)s::timestamptz
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
        SELECT array_agg(lower(piece)) AS froms, array_agg(upper(piece)) AS tos
        FROM unnest(int8multirange(int8range(g.first_offset, g.end_offset)) - g.again) AS piece) done
    WHERE g.queue_id = ANY (%(queue_ids)s)
      AND g.finished_at >= %(since)s::timestamptz AND g.finished_at < %(until)s::timestamptz
    """,
    "queue string, group_name string, partition string, partition_id long, first_offset long, end_offset long, "
    "attempt int, reason string, first_pushed_at timestamp, last_pushed_at timestamp, leased_at timestamp, "
    "finished_at timestamp, done_from array<bigint>, done_to array<bigint>",
)
LETTERS_OF = Table(
    """
    SELECT queue, group_name, partition, "offset", left(error, 2000), attempts, failed_at FROM skep.dead_letters
    WHERE id >= %(first)s AND id < %(end)s AND queue = ANY (%(queues)s)
      AND failed_at >= %(since)s::timestamptz AND failed_at < %(until)s::timestamptz
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
LANE_IDS: LiteralString = "SELECT partition_id FROM skep.lanes WHERE queue = ANY (%(queues)s) ORDER BY 1"
LOG_TIMES: LiteralString = """
    SELECT min(edge.oldest), max(edge.newest) FROM unnest(%(queue_ids)s::int[]) AS queue (id)
    CROSS JOIN LATERAL (SELECT min(finished_at) AS oldest, max(finished_at) AS newest
                        FROM skep.lease_log WHERE queue_id = queue.id) edge
"""
LETTER_IDS: LiteralString = "SELECT min(id), max(id) FROM skep.dead_letters"


class TableSource(DataSource):
    """A statement as a data source. (`mapInArrow` would do as well, but asks for pandas.)"""

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(dict(self.options), schema)


class TableReader(DataSourceReader):
    """A statement, and the arguments that each task gives it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(piece) for piece in json.loads(self._options["pieces"])]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        options = self._options
        return _rows(options["url"], options["statement"], partition.value, arrow_schema(self._schema))


class Tables:
    """The tables of a database, in a session."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self._spark, self._url = spark, url
        # Spark looks for the name in the session that was used last: each has its own.
        self._format = name = f"skep_table_{uuid4().hex}"
        spark.dataSource.register(type("Source", (TableSource,), {"name": classmethod(lambda _: name)}))

    def frame(self, table: Table, pieces: Sequence[Piece]) -> DataFrame:
        """Return what tasks get for these arguments, one task for each."""
        if not pieces:
            return empty(self._spark, table.columns)
        options = {"url": self._url, "statement": table.statement, "pieces": json.dumps(pieces, default=str)}
        return self._spark.read.format(self._format).schema(table.columns).options(**options).load()


def _rows(url: str, statement: str, arguments: Piece, schema: Any) -> Iterator[RecordBatch]:  # noqa: ANN401
    with (
        explained(),
        psycopg.connect(url, application_name="skep analytics") as connection,
        connection.cursor("rows", binary=True) as cursor,
    ):
        cursor.execute(statement.encode(), arguments)
        while rows := cursor.fetchmany(AT_ONCE):
            columns = zip(*rows, strict=True)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


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
