"""The columns that a source returns and a sink accepts."""

import difflib
from collections.abc import Iterable

from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from skep.errors import InvalidArgument

HEADERS = MapType(StringType(), StringType())
COLUMNS: dict[str, DataType] = {
    "queue": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "key": StringType(),  # the same as partition, for jobs that were written for Kafka
    "value": StringType(),  # JSON
    "headers": HEADERS,
    "transaction_id": StringType(),
    "timestamp": TimestampType(),
    "trace_id": StringType(),
    "producer": StringType(),
    "partition_id": LongType(),
}
WRITTEN = ("queue", "partition", "key", "value", "headers", "transaction_id", "trace_id", "producer")


def source_schema(*, headers: bool) -> StructType:
    names = [name for name in COLUMNS if headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name]) for name in names])


def check_read(schema: StructType) -> StructType:
    """Raise InvalidArgument unless `.schema(…)` is a subset of the columns. Fewer columns are read faster."""
    for field in schema.fields:
        _check_known(field.name)
        if field.dataType != COLUMNS[field.name]:
            expected = COLUMNS[field.name].simpleString()
            raise InvalidArgument(f"column {field.name} must be {expected}, got {field.dataType.simpleString()}")
    return schema


def check_written(schema: StructType, queue: str | None) -> StructType:
    """Raise InvalidArgument unless rows can be messages. Columns such as offset and timestamp are ignored."""
    names = [field.name for field in schema.fields]
    if "value" not in names:
        raise InvalidArgument("the rows have no column value", hint="Add one: to_json(struct(*)) AS value.")
    if "queue" not in names and queue is None:
        raise InvalidArgument("no queue to write to is given", hint="Set option queue, or add a column queue.")
    for field in schema.fields:
        _check_known(field.name)
        expected = COLUMNS[field.name]
        if field.name in WRITTEN and field.dataType.simpleString() != expected.simpleString():
            hint = "Write JSON: to_json(…)." if field.name == "value" else ""
            message = f"column {field.name} must be {expected.simpleString()}, got {field.dataType.simpleString()}"
            raise InvalidArgument(message, hint=hint)
    return schema


def _check_known(name: str) -> None:
    if name not in COLUMNS:
        raise InvalidArgument(
            f'unknown column "{name}": did you mean {_nearest(name, COLUMNS)}?', hint=f"Columns: {', '.join(COLUMNS)}."
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
