"""The columns: those a reader gives, and what a sink makes of them."""

import difflib
from collections.abc import Iterable

from pyspark.sql.types import DataType, LongType, MapType, StringType, StructField, StructType, TimestampType

from skep.errors import InvalidArgument

HEADERS = MapType(StringType(), StringType())
COLUMNS: dict[str, DataType] = {
    "queue": StringType(),
    "partition": StringType(),
    "offset": LongType(),
    "key": StringType(),  # the partition again: jobs written for Kafka order by key
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
    """Refuse a `.schema(…)` that is not a choice of the columns; fewer columns are fetched faster."""
    for field in schema.fields:
        _check_known(field.name)
        if field.dataType != COLUMNS[field.name]:
            wanted = COLUMNS[field.name].simpleString()
            raise InvalidArgument(f"column {field.name} is {wanted}, not {field.dataType.simpleString()}")
    return schema


def check_written(schema: StructType, queue: str | None) -> StructType:
    """Refuse rows that are no messages. What only a reader gives (offset, timestamp, …) is not written."""
    names = [field.name for field in schema.fields]
    if "value" not in names:
        raise InvalidArgument("there is no column value", hint="Make one: to_json(struct(*)) AS value.")
    if "queue" not in names and queue is None:
        raise InvalidArgument("nothing says which queue to write to", hint="Give option queue, or a column queue.")
    for field in schema.fields:
        _check_known(field.name)
        wanted = COLUMNS[field.name]
        if field.name in WRITTEN and field.dataType.simpleString() != wanted.simpleString():
            hint = "Write JSON: to_json(…)." if field.name == "value" else ""
            message = f"column {field.name} is {field.dataType.simpleString()}, a message needs {wanted.simpleString()}"
            raise InvalidArgument(message, hint=hint)
    return schema


def _check_known(name: str) -> None:
    if name not in COLUMNS:
        raise InvalidArgument(
            f'unknown column "{name}": did you mean {_nearest(name, COLUMNS)}?', hint=f"Columns: {', '.join(COLUMNS)}."
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
