"""Import: rows of files become messages of a queue, each once, however often the import is run.

Every row gets a transaction id made of the import's name, its content, and how many equal rows came before it.
So the next run finishes one that was killed, and rows added to the files are all that a repetition brings.
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
HEADS: LiteralString = """
    SELECT coalesce(sum(last_offset + 1), 0)::bigint FROM skep.partition_list WHERE queue = %(queue)s
"""


@dataclass(frozen=True, slots=True)
class Source:
    """What to import: files or directories of one format, and which field is what. `name` tells imports apart."""

    paths: tuple[str, ...]
    format: Format
    partition: str | None = None
    transaction_id: str | None = None
    order: str | None = None
    infer: bool = False
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import has done: pushed, and left out as it was there."""

    queue: str
    messages: int
    duplicates: int


def import_files(
    spark: SparkSession, url: str, queue: str, source: Source, *, watch: Callable[[int, int], None] | None = None
) -> Imported:
    """Push every row that this import has not pushed before. Rows of a partition keep their order."""
    rows = _ordered(spark, _rows(spark, source), source)
    work = partial(_push, url, queue)
    with explained():
        total, began = (rows.count(), head(url, queue)) if watch else (0, 0)
        look = (lambda: watch(head(url, queue) - began, total)) if watch else None
        counts = tasks.watched(spark, lambda _: rows.rdd.mapPartitions(work).collect(), look)
    queued, duplicates = (sum(numbers) for numbers in zip(*counts, strict=True)) if counts else (0, 0)
    if watch:
        watch(queued + duplicates, total)
    return Imported(queue, queued, duplicates)


def _rows(spark: SparkSession, source: Source) -> DataFrame:
    """Return value, partition and transaction_id of each row, and where it stands."""
    if source.format not in get_args(Format):
        raise InvalidArgument(f'format is "{source.format}", none of {", ".join(get_args(Format))}')
    place = (f.col("_metadata.file_path").alias("file"), f.col("_metadata.file_block_start").alias("block"))
    if source.format == "json":
        # As it is written: what Spark would make of it has other numbers, and a null for each field of another line.
        lines = spark.read.text(list(source.paths)).where("trim(value) <> ''")
        return lines.select("value", *_fields(source, _json_field), *place, f.monotonically_increasing_id().alias("at"))
    if source.format == "csv":
        frame = spark.read.csv(list(source.paths), header=True, inferSchema=source.infer, mode="FAILFAST")
    else:
        frame = spark.read.parquet(*source.paths)
    for name in (source.partition, source.transaction_id, source.order):
        if name is not None and name not in frame.columns:
            raise InvalidArgument(f'there is no column "{name}"', hint=f"Columns: {', '.join(frame.columns)}.")
    value = f.to_json(f.struct(*(_named(name) for name in frame.columns)), {"ignoreNullFields": "false"})
    return frame.select(
        value.alias("value"), *_fields(source, _named), *place, f.monotonically_increasing_id().alias("at")
    )


def _fields(source: Source, field: Callable[[str], Column]) -> Sequence[Column]:
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


def _ordered(spark: SparkSession, rows: DataFrame, source: Source) -> DataFrame:
    """Bring the rows of a partition into one task, in order, each with its transaction id."""
    order = [f.col(name) for name in ("rank", "file", "block", "at")]
    if source.transaction_id is None:
        name = source.name or "\n".join(sorted(source.paths))
        rows = rows.withColumn("hash", f.sha2(f.concat_ws("\n", f.lit(name), f.col("value")), 256))
        number = f.row_number().over(Window.partitionBy("partition", "hash").orderBy(*order)) - 1
        made = f.concat_ws("-", f.lit("import"), f.col("hash"), number.cast("string"))
        rows = rows.withColumn("transaction_id", made)
    shares = tasks.cores(spark) * TASKS_PER_CORE
    sorted_ = rows.repartition(shares, "partition").sortWithinPartitions("partition", *order)
    return sorted_.select("partition", "value", "transaction_id")


def _push(url: str, queue: str, rows: Iterable[Row]) -> Iterator[tuple[int, int]]:
    left = iter(rows)
    while some := list(islice(left, AT_ONCE)):
        items = (_message(queue, row["partition"], row["value"], row["transaction_id"]) for row in some)
        found: dict[str, int] = dict(database(url).rows(PUSH, messages=f"[{','.join(items)}]"))
        yield found.get("queued", 0), found.get("duplicate", 0)


def _message(queue: str, partition: str, value: str, transaction_id: str) -> str:
    """Return a row as `skep.push` takes it. The payload is JSON already, and goes in as it is."""
    names = encode({"queue": queue, "partition": partition, "transaction_id": transaction_id})
    return f'{names[:-1]}, "payload": {_checked(value)}}}'


def _checked(value: str) -> str:
    """A line that is no JSON must not become a part of another one's."""
    try:
        json.loads(value)
    except ValueError as error:
        raise InvalidArgument(f"a row is not JSON: {value[:80]!r}: {error}") from None
    return value


def head(url: str, queue: str) -> int:
    """Return how many messages were ever pushed to a queue."""
    return int(database(url).one(HEADS, queue=queue)[0])
