"""Payloads parsed as a Spark type."""

from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StringType, StructType

from skep.errors import ConfigError

CORRUPT = "_malformed"
Malformed = Literal["keep", "drop", "fail"]


def parse(frame: DataFrame, schema: StructType | str, *, malformed: Malformed = "keep") -> DataFrame:
    """Add a column `data`: the payload parsed with this schema.

    `malformed` says what happens to rows whose payload does not match: `keep` them, with `data` null and the text in
    the column `malformed`; `drop` them; or `fail` the query.
    """
    if malformed not in get_args(Malformed):
        raise ConfigError(f'malformed must be one of {", ".join(get_args(Malformed))}, got "{malformed}"')
    struct = _struct(schema)
    mode = {"mode": "FAILFAST" if malformed == "fail" else "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    if malformed == "fail":
        return frame.withColumn("data", f.from_json("value", struct, mode))
    parsed = frame.withColumn("data", f.from_json("value", struct.add(CORRUPT, StringType()), mode))
    text = f.col("data").getField(CORRUPT)
    split = parsed.withColumn("malformed", text).withColumn(
        "data", f.when(text.isNull(), f.col("data").dropFields(CORRUPT))
    )
    return split if malformed == "keep" else split.where("malformed IS NULL").drop("malformed")


def _struct(schema: StructType | str) -> StructType:
    given: DataType = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(given, StructType):
        raise ConfigError(f"the schema of a payload must be a struct, got {given.simpleString()}")
    return StructType(list(given.fields))
