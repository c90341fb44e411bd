"""Payloads with a type."""

from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StringType, StructType

from skep.errors import ConfigError

CORRUPT = "_malformed"
Malformed = Literal["keep", "drop", "fail"]


def parse(frame: DataFrame, schema: StructType | str, *, malformed: Malformed = "keep") -> DataFrame:
    """Add a column `data`: the payload as this type.

    A payload that does not fit is kept, with `data` null and its text in the column `malformed`; or it is dropped;
    or it fails the query.
    """
    if malformed not in get_args(Malformed):
        raise ConfigError(f'malformed is "{malformed}", none of {", ".join(get_args(Malformed))}')
    wanted = _struct(schema)
    mode = {"mode": "FAILFAST" if malformed == "fail" else "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    if malformed == "fail":
        return frame.withColumn("data", f.from_json("value", wanted, mode))
    parsed = frame.withColumn("data", f.from_json("value", wanted.add(CORRUPT, StringType()), mode))
    text = f.col("data").getField(CORRUPT)
    split = parsed.withColumn("malformed", text).withColumn(
        "data", f.when(text.isNull(), f.col("data").dropFields(CORRUPT))
    )
    return split if malformed == "keep" else split.where("malformed IS NULL").drop("malformed")


def _struct(schema: StructType | str) -> StructType:
    wanted: DataType = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(wanted, StructType):
        raise ConfigError(f"a payload is parsed as a struct, not as {wanted.simpleString()}")
    return StructType(list(wanted.fields))
