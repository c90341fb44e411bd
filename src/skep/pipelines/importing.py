"""Import: push the rows of files to a queue, each once, even if the import runs again.

The transaction id of a row consists of the import's name, a hash of the row, and the number of equal rows before it. A
second run therefore completes one that was killed, and pushes only rows that were added to the files.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, LiteralString, get_args

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f

from skep.errors import InvalidArgument, explained
from skep.message import DEFAULT_PARTITION
from skep.pipelines import tasks
from skep.spark.database import database
from skep.spark.parquet import encode

Format = Literal["parquet", "json", "csv"]
AT_ONCE = 1_000
TASKS_PER_CORE = 4
PUSH: LiteralString = "SELECT status, count(*) FROM skep.push(%(messages)s::jsonb) GROUP BY status"
PUSHED: LiteralString = """
    SELECT coalesce(sum(last_offset + 1), 0)::bigint FROM skep.partition_list WHERE queue = %(queue)s
"""


@dataclass(frozen=True, slots=True)
class ImportSource:
    """Files or directories of one format, and the fields that become partition, transaction id and order.

    Two imports of the same rows push them twice if their names differ; the default name is made of the paths.
    """

    paths: tuple[str, ...]
    format: Format
    partition: str | None = None
    transaction_id: str | None = None
    order: str | None = None
    infer: bool = False
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: messages pushed, and duplicates that were not pushed again."""

    queue: str
    messages: int
    duplicates: int


def import_files(
    spark: SparkSession,
    url: str,
    queue: str,
    source: ImportSource,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """Push the rows that this import has not pushed yet. Rows of a partition keep their order."""
    rows = _ordered(spark, _rows(spark, source), source)
    work = partial(_push, url, queue)
    with explained():
        total, began = (rows.count(), pushed(url, queue)) if on_progress else (0, 0)
        report = (lambda: on_progress(pushed(url, queue) - began, total)) if on_progress else None
        counts = tasks.run_job(spark, lambda _: rows.rdd.mapPartitions(work).collect(), report)
    queued, duplicates = (sum(numbers) for numbers in zip(*counts, strict=True)) if counts else (0, 0)
    if on_progress:
        on_progress(queued + duplicates, total)
    return Imported(queue, queued, duplicates)


def _rows(spark: SparkSession, source: ImportSource) -> DataFrame:
    """Return value, partition and transaction_id of each row, and its place in the files."""
    if source.format not in get_args(Format):
        raise InvalidArgument(f'format must be one of {", ".join(get_args(Format))}, got "{source.format}"')
    place = (f.col("_metadata.file_path").alias("file"), f.col("_metadata.file_block_start").alias("block"))
    if source.format == "json":
        # As text: Spark's parser would change numbers, and add a null for each field that only another line has.
        lines = spark.read.text(list(source.paths)).where("trim(value) <> ''")
        return lines.select("value", *_fields(source, _json_field), *place, f.monotonically_increasing_id().alias("at"))
    if source.format == "csv":
        frame = spark.read.csv(list(source.paths), header=True, inferSchema=source.infer, mode="FAILFAST")
    else:
        frame = spark.read.parquet(*source.paths)
    for name in (source.partition, source.transaction_id, source.order):
        if name is not None and name not in frame.columns:
            raise InvalidArgument(f'column "{name}" does not exist', hint=f"Columns: {', '.join(frame.columns)}.")
    value = f.to_json(f.struct(*(_named(name) for name in frame.columns)), {"ignoreNullFields": "false"})
    return frame.select(
        value.alias("value"), *_fields(source, _named), *place, f.monotonically_increasing_id().alias("at")
    )


def _fields(source: ImportSource, field: Callable[[str], Column]) -> Sequence[Column]:
    nothing = f.lit(None)
    partition = field(source.partition) if source.partition else nothing
    return (
        f.coalesce(partition.cast("string"), f.lit(DEFAULT_PARTITION)).alias("partition"),
        (field(source.transaction_id) if source.transaction_id else nothing).cast("string").alias("transaction_id"),
        (field(source.order) if source.order else nothing).alias("rank"),
    )


def _named(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def _json_field(path: str) -> Column:
    return f.get_json_object("value", f"$.{path}")


def _ordered(spark: SparkSession, rows: DataFrame, source: ImportSource) -> DataFrame:
    """Put the rows of a partition into one task, in order, each with its transaction id."""
    order = [f.col(name) for name in ("rank", "file", "block", "at")]
    if source.transaction_id is None:
        name = source.name or "\n".join(sorted(source.paths))
        rows = rows.withColumn("hash", f.sha2(f.concat_ws("\n", f.lit(name), f.col("value")), 256))
        number = f.row_number().over(Window.partitionBy("partition", "hash").orderBy(*order)) - 1
        made = f.concat_ws("-", f.lit("import"), f.col("hash"), number.cast("string"))
        rows = rows.withColumn("transaction_id", made)
    number_of_tasks = tasks.cores(spark) * TASKS_PER_CORE
    sorted_ = rows.repartition(number_of_tasks, "partition").sortWithinPartitions("partition", *order)
    return sorted_.select("partition", "value", "transaction_id")


def _push(url: str, queue: str, rows: Iterable[Row]) -> Iterator[tuple[int, int]]:
    left = iter(rows)
    while some := list(islice(left, AT_ONCE)):
        items = (_message(queue, row["partition"], row["value"], row["transaction_id"]) for row in some)
        found: dict[str, int] = dict(database(url).rows(PUSH, messages=f"[{','.join(items)}]"))
        yield found.get("queued", 0), found.get("duplicate", 0)


def _message(queue: str, partition: str, value: str, transaction_id: str) -> str:
    """Return a row as JSON for `skep.push`. The payload is already JSON and is not parsed."""
    names = encode({"queue": queue, "partition": partition, "transaction_id": transaction_id})
    return f'{names[:-1]}, "payload": {_checked(value)}}}'


def _checked(value: str) -> str:
    """Return the value, or raise InvalidArgument if it is not JSON: it must not change the JSON around it."""
    try:
        json.loads(value)
    except ValueError as error:
        raise InvalidArgument(f"a row is not JSON: {value[:80]!r}: {error}") from None
    return value


def pushed(url: str, queue: str) -> int:
    """Return the number of messages that were ever pushed to a queue."""
    return int(database(url).one(PUSHED, queue=queue)[0])
