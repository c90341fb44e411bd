"""The sink: tasks stage their rows, and the driver publishes a batch in one transaction, exactly once."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from skep.client.calls import NOTIFY
from skep.errors import InvalidArgument
from skep.message import DEFAULT_PARTITION
from skep.spark.arrow import Array, RecordBatch, pa, pc
from skep.spark.database import CLEAR_SINK, DROP_SINK, OPEN_SINK, PUBLISH, STAGE, SparkDatabase, database
from skep.spark.options import SinkOptions
from skep.spark.staging import as_chunk, split

log = logging.getLogger("skep.spark")


@dataclass
class StagedRows(WriterCommitMessage):
    """The chunks that a task has staged, in order, with their numbers of rows, and the queues of their messages."""

    sink: str
    query: str
    chunks: list[str]
    counts: list[int]
    queues: list[str]


class BatchWriter(DataSourceArrowWriter):
    """Writes one batch. With a sinkId it is published once, even if the query runs again; without, at each run."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._sink = options.sink or f"batch {uuid4()}"

    def write(self, iterator: Iterator[RecordBatch]) -> StagedRows:
        return stage(self._options, iterator, self._sink, "batch", 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        publish(self._options, messages, 0)
        self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        database(self._options.url).rows(CLEAR_SINK, sink=self._sink, batch=0)
        self._forget()

    def _forget(self) -> None:
        if self._options.sink is None:
            database(self._options.url).rows(DROP_SINK, sink=self._sink)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream. It has no state: Spark creates a new writer for each batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema

    def write(self, iterator: Iterator[RecordBatch]) -> StagedRows:
        query, batch = _property("sql.streaming.queryId"), int(_property("streaming.sql.batchId"))
        return stage(self._options, iterator, self._options.sink or f"query {query}", query, batch)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        publish(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the rows of tasks that succeeded. The next batch that is published deletes those of failed tasks."""
        for sink in {message.sink for message in messages if isinstance(message, StagedRows)}:
            database(self._options.url).rows(CLEAR_SINK, sink=sink, batch=batchId)


def _property(name: str) -> str:
    context = TaskContext.get()
    value = context and context.getLocalProperty(name)
    if not value:
        raise RuntimeError(f"Spark did not set {name}: exactly-once writes need it, use another version of Spark")
    return value


def stage(options: SinkOptions, batches: Iterator[RecordBatch], sink: str, query: str, batch: int) -> StagedRows:
    """Stage the rows of a task."""
    db = database(options.url)
    db.rows(OPEN_SINK, sink=sink, query=query)
    staged = StagedRows(sink, query, [], [], [])
    for rows in batches:
        for part in split(rows):
            chunk = as_chunk(as_messages(part, options.queue))
            staged.chunks.append(_stage(db, chunk, sink, batch))
            staged.counts.append(part.num_rows)
            staged.queues = sorted({*staged.queues, *chunk["queues"]})
    return staged


def _stage(db: SparkDatabase, chunk: Mapping[str, object], sink: str, batch: int) -> str:
    """Stage a chunk. Each attempt uses a new id, so chunks of failed attempts are not published."""

    def attempt(connection: psycopg.Connection) -> str:
        name = str(uuid4())
        connection.execute(STAGE, {"sink": sink, "batch": batch, "chunk": name, **chunk})
        return name

    return db.retry(attempt)


def as_messages(rows: RecordBatch, queue: str | None) -> dict[str, Array]:
    """Return the columns of messages, with defaults for those that the rows do not have."""
    given = dict(zip(rows.schema.names, rows.columns, strict=True))
    nothing = pa.nulls(rows.num_rows, pa.string())
    value, queues = given["value"], given.get("queue", nothing)
    _refuse_nulls("value", value)
    if queue is not None:
        queues = pc.coalesce(queues, pa.scalar(queue))
    _refuse_nulls("queue", queues)
    partitions = pc.coalesce(given.get("partition", nothing), given.get("key", nothing), pa.scalar(DEFAULT_PARTITION))
    headers = given.get("headers")
    return {
        "queue": queues,
        "partition": partitions,
        "payload": value,
        "headers": nothing
        if headers is None
        else pa.array([_json(pairs) for pairs in headers.to_pylist()], pa.string()),
        "transaction_id": given.get("transaction_id", nothing),
        "trace_id": given.get("trace_id", nothing),
        "producer": given.get("producer", nothing),
    }


def _refuse_nulls(name: str, column: Array) -> None:
    if column.null_count:
        raise InvalidArgument(
            f"column {name} is null in {column.null_count} rows", hint="A message needs a queue and a value."
        )


def _json(pairs: list[tuple[str, str | None]] | None) -> str | None:
    return None if pairs is None else json.dumps(dict(pairs), ensure_ascii=False)


def publish(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    """Publish the rows that all tasks have staged, in the order of the tasks."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if not staged:
        return
    db, first = database(options.url), staged[0]
    chunks = [chunk for message in staged for chunk in message.chunks]
    counts = [count for message in staged for count in message.counts]
    (new,) = db.one(PUBLISH, sink=first.sink, query=first.query, batch=batch, chunks=chunks, counts=counts)
    if new is None:
        log.info("batch %d of %s has already been published", batch, first.sink)
    elif new:
        queues = sorted({queue for message in staged for queue in message.queues})
        db.rows(NOTIFY, origin="spark", queues=queues)
