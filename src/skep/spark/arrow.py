"""Arrow, which has no type annotations: its types are Any from here on."""

import importlib
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")
_types: Any = importlib.import_module("pyspark.sql.pandas.types")

Array: TypeAlias = Any
RecordBatch: TypeAlias = Any


def arrow_schema(schema: StructType) -> Any:  # noqa: ANN401
    """Return the exact Arrow schema that Spark expects of a reader."""
    return _types.to_arrow_schema(schema, timezone="UTC")


def arrow_of(frame: DataFrame) -> Any:  # noqa: ANN401
    """Return the rows of a frame, which must be small, as an Arrow table."""
    found: Any = frame
    return found.toArrow()


def empty(spark: SparkSession, columns: str) -> DataFrame:
    return from_rows(spark, [], columns)


def from_rows(spark: SparkSession, rows: object, columns: str) -> DataFrame:
    """Return a frame of tuples, which are a list or an RDD."""
    found: Any = spark
    return found.createDataFrame(rows, columns, verifySchema=False)
