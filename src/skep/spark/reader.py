"""The reader of a task: runs become Arrow batches, in short queries, and every message is accounted for.

Runs that are entirely in the log come packed into one row, which costs a fifth of what a row for each message costs.
Otherwise messages come row by row, the deleted ones from the archive.
"""

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import psycopg
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from skep.spark.archive import read_archived
from skep.spark.arrow import Array, RecordBatch, arrow_schema, pa, pc
from skep.spark.database import PARTITION_NAMES, READ, READ_PACKED, SparkDatabase, database
from skep.spark.options import SourceOptions
from skep.spark.runs import DeletedRun, Run, as_arguments, chunks, count
from skep.spark.staging import SEPARATOR

AT_ONCE = 10_000
YEAR_2000 = 946_684_800_000_000  # microseconds since 1970: the epoch of PostgreSQL
Columns = dict[str, Array]
Texts = Sequence[str | None] | None


class TaskInput(InputPartition):
    """The runs that one task reads."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__([tuple(run) for run in runs])

    @property
    def runs(self) -> list[Run]:
        runs: list[tuple[int, int, int]] = self.value
        return [Run(*run) for run in runs]


class MessageColumns(NamedTuple):
    """The columns of messages. `run` is the index of a message's run; a column that no message has is None."""

    run: Array
    offsets: Array
    times: Array
    values: Array
    headers: Texts
    transactions: Texts
    traces: Texts
    producers: Texts


def read_task(options: SourceOptions, schema: StructType, task: InputPartition) -> Iterator[RecordBatch]:
    """Yield the messages of a task."""
    if not isinstance(task, TaskInput):  # Spark replaces an empty list of tasks with one of its own
        return
    db, arrow = database(options.url), arrow_schema(schema)
    for runs in chunks(task.runs, AT_ONCE):
        columns = _columns(db, options, runs, schema.names)
        yield pa.RecordBatch.from_arrays(
            [columns[name].cast(arrow.field(name).type) for name in schema.names], schema=arrow
        )


def _columns(db: SparkDatabase, options: SourceOptions, runs: Sequence[Run], names: Sequence[str]) -> Columns:
    payloads = "value" in names
    if messages := _read_packed(db, runs, payloads=payloads):
        known = partition_names(db, runs)
    else:
        rows, known = read_runs(db, options, runs, payloads=payloads)
        messages = _from_rows([row for row in rows if not row[3]])
    queues, partitions = (pa.array(texts, pa.string()) for texts in zip(*known, strict=True))
    found = _named(messages, queues, partitions, pa.array([run.partition_id for run in runs], pa.int64()))
    exists = pc.not_equal(messages.values, "")
    return found if pc.all(exists).as_py() else {name: column.filter(exists) for name, column in found.items()}


def _read_packed(db: SparkDatabase, runs: Sequence[Run], *, payloads: bool) -> MessageColumns | None:
    """Return None if a message is no longer in the log, or if the messages are too large for one row."""
    try:
        found, times, values, *texts = db.one(READ_PACKED, **as_arguments(runs), payloads=payloads)
    except psycopg.errors.ProgramLimitExceeded:
        return None
    if found != count(runs) or not found:
        return None
    return MessageColumns(_run_numbers(runs), _offsets(runs), _times(times), _values(values), *texts)


def read_runs(
    db: SparkDatabase, options: SourceOptions, runs: Sequence[Run], *, payloads: bool
) -> tuple[list[tuple[Any, ...]], list[tuple[str | None, str | None]]]:
    """Read runs, deleted messages from the archive. Return rows of `skep._read`, and the partition of each run."""
    rows = db.rows(READ, **as_arguments(runs), payloads=payloads)
    names = partition_names(db, runs)
    if len(rows) == count(runs) or not (options.archive or options.fail_on_data_loss):
        return rows, names
    ords = {run.partition_id: number for number, run in enumerate(runs, 1)}
    old, known = read_archived(db, options.archive, _deleted(runs, rows), ords, strict=options.fail_on_data_loss)
    rows = sorted([*old, *rows], key=lambda row: row[:2])
    return rows, [known.get(run.partition_id, name) for run, name in zip(runs, names, strict=True)]


def partition_names(
    db: SparkDatabase, runs: Sequence[Run] | Sequence[DeletedRun]
) -> list[tuple[str | None, str | None]]:
    """Return queue and partition of each run, None if the partition was deleted."""
    rows = db.rows(PARTITION_NAMES, partition_ids=[run.partition_id for run in runs])
    return [(queue, partition) for queue, partition in rows]


def _run_numbers(runs: Sequence[Run]) -> Array:
    numbers = array("i")
    for number, run in enumerate(runs):
        numbers.extend(repeat(number, run.end - run.first))
    return _arrow(numbers, pa.int32())


def _offsets(runs: Sequence[Run]) -> Array:
    offsets = array("q")
    for run in runs:
        offsets.extend(range(run.first, run.end))
    return _arrow(offsets, pa.int64())


def _times(packed: bytes) -> Array:
    times = array("q", packed)
    if sys.byteorder == "little":
        times.byteswap()
    return pc.add(_arrow(times, pa.int64()), YEAR_2000).cast(pa.timestamp("us", tz="UTC"))


def _values(packed: bytes) -> Array:
    return pc.split_pattern(pa.array([packed], pa.binary()).cast(pa.string()), SEPARATOR).flatten()


def _arrow(numbers: "array[Any]", kind: Any) -> Array:  # noqa: ANN401
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _from_rows(rows: list[tuple[Any, ...]]) -> MessageColumns:
    ords, offsets, times, _, values, *texts = zip(*rows, strict=True) if rows else ((),) * 9
    return MessageColumns(
        pa.array([number - 1 for number in ords], pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.timestamp("us", tz="UTC")),
        pa.array(values, pa.string()),
        *texts,
    )


def _named(messages: MessageColumns, queues: Array, partitions: Array, partition_ids: Array) -> Columns:
    partition = partitions.take(messages.run)
    nothing = [None] * len(partition)
    return {
        "queue": queues.take(messages.run),
        "partition": partition,
        "offset": messages.offsets,
        "key": partition,
        "value": messages.values,
        "headers": pa.array(map(_pairs, messages.headers or nothing), pa.map_(pa.string(), pa.string())),
        "transaction_id": pa.array(messages.transactions or nothing, pa.string()),
        "timestamp": messages.times,
        "trace_id": pa.array(messages.traces or nothing, pa.string()),
        "producer": pa.array(messages.producers or nothing, pa.string()),
        "partition_id": partition_ids.take(messages.run),
    }


def _pairs(text: str | None) -> list[tuple[str, str | None]] | None:
    """Return headers as pairs. A value that is not a string is returned as JSON."""
    if text is None:
        return None
    return [(name, _as_text(value)) for name, value in json.loads(text).items()]


def _as_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _deleted(runs: Sequence[Run], rows: Sequence[tuple[Any, ...]]) -> list[DeletedRun]:
    """Return the beginning of each run that is not in `rows`: retention deletes the oldest messages first."""
    first = {number: run.end for number, run in enumerate(runs, 1)}
    for row in reversed(rows):
        first[row[0]] = row[1]
    deleted = (DeletedRun(run.partition_id, run.first, first[number]) for number, run in enumerate(runs, 1))
    return [run for run in deleted if run.first != run.end]
