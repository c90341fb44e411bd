"""Runs of lanes as Arrow: in short queries, no transaction longer than one, and every message accounted for."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from skep.spark.archive import recall
from skep.spark.arrow import Array, RecordBatch, arrow_schema, pa, pc
from skep.spark.database import LANE_NAMES, READ, Database, database
from skep.spark.options import SourceOptions
from skep.spark.packed import Packed, read_packed
from skep.spark.window import Lost, Run, chunks, count

AT_ONCE = 10_000
Columns = dict[str, Array]


class Task(InputPartition):
    """The runs that one task reads."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__([tuple(run) for run in runs])

    @property
    def runs(self) -> list[Run]:
        runs: list[tuple[int, int, int]] = self.value
        return [Run(*run) for run in runs]


def read_task(options: SourceOptions, schema: StructType, task: InputPartition) -> Iterator[RecordBatch]:
    if not isinstance(task, Task):  # Spark makes one of its own of no task
        return
    db, arrow = database(options.url), arrow_schema(schema)
    for runs in chunks(task.runs, AT_ONCE):
        columns = _columns(db, options, runs, schema.names)
        yield pa.RecordBatch.from_arrays(
            [columns[name].cast(arrow.field(name).type) for name in schema.names], schema=arrow
        )


def _columns(db: Database, options: SourceOptions, runs: Sequence[Run], names: Sequence[str]) -> Columns:
    payloads = "value" in names
    lanes = [run.lane for run in runs]
    if packed := read_packed(db, runs, payloads=payloads):
        known = lane_names(db, lanes)
    else:
        rows, known = fetch(db, options, runs, payloads=payloads)
        packed = _packed([row for row in rows if not row[3]])
    queues, partitions = zip(*known, strict=True)
    found = _named(
        packed, pa.array(queues, pa.string()), pa.array(partitions, pa.string()), pa.array(lanes, pa.int64())
    )
    alive = pc.not_equal(packed.values, "")
    return found if pc.all(alive).as_py() else {name: column.filter(alive) for name, column in found.items()}


def fetch(
    db: Database, options: SourceOptions, runs: Sequence[Run], *, payloads: bool
) -> tuple[list[tuple[Any, ...]], list[tuple[str | None, str | None]]]:
    """Read runs, from the log and, what is not there any more, from the archive; and the names of their lanes."""
    lanes = [run.lane for run in runs]
    arguments = {"lanes": lanes, "firsts": [run.first for run in runs], "ends": [run.end for run in runs]}
    rows = db.rows(READ, **arguments, payloads=payloads)
    names = lane_names(db, lanes)
    if len(rows) == count(runs) or not (options.archive or options.fail_on_data_loss):
        return rows, names
    ords = {run.lane: number for number, run in enumerate(runs, 1)}
    old, known = recall(db, options.archive, _missing(runs, rows), ords, strict=options.fail_on_data_loss)
    rows = sorted([*old, *rows], key=lambda row: row[:2])
    return rows, [known.get(lane, name) for lane, name in zip(lanes, names, strict=True)]


def lane_names(db: Database, lanes: list[int]) -> list[tuple[str | None, str | None]]:
    """Return queue and partition of each; None for what is gone."""
    return [(queue, partition) for queue, partition in db.rows(LANE_NAMES, lanes=lanes)]


def _packed(rows: list[tuple[Any, ...]]) -> Packed:
    ords, offsets, times, _, values, *texts = zip(*rows, strict=True) if rows else ((),) * 9
    return Packed(
        pa.array([number - 1 for number in ords], pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.timestamp("us", tz="UTC")),
        pa.array(values, pa.string()),
        *texts,
    )


def _named(packed: Packed, queues: Array, partitions: Array, lanes: Array) -> Columns:
    partition = partitions.take(packed.run)
    nothing = [None] * len(partition)
    return {
        "queue": queues.take(packed.run),
        "partition": partition,
        "offset": packed.offsets,
        "key": partition,
        "value": packed.values,
        "headers": pa.array(map(_pairs, packed.headers or nothing), pa.map_(pa.string(), pa.string())),
        "transaction_id": pa.array(packed.transactions or nothing, pa.string()),
        "timestamp": packed.times,
        "trace_id": pa.array(packed.traces or nothing, pa.string()),
        "producer": pa.array(packed.producers or nothing, pa.string()),
        "partition_id": lanes.take(packed.run),
    }


def _pairs(text: str | None) -> list[tuple[str, str | None]] | None:
    """Headers may hold any JSON; what is not a text is given as its JSON."""
    if text is None:
        return None
    return [(name, _plain(value)) for name, value in json.loads(text).items()]


def _plain(value: object) -> str | None:
    return (
        value
        if value is None or isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )


def _missing(runs: Sequence[Run], rows: Sequence[tuple[Any, ...]]) -> list[Lost]:
    """Retention deletes from the front: what is missing of a run is its beginning."""
    first = {number: run.end for number, run in enumerate(runs, 1)}
    for row in reversed(rows):
        first[row[0]] = row[1]
    gone = (Lost(run.lane, run.first, first[number]) for number, run in enumerate(runs, 1))
    return [each for each in gone if each.first != each.end]
