"""Registers `format("skep")`: Spark imports every module whose name begins with pyspark_."""

from skep.spark.source import SkepDataSource as DefaultSource

__all__ = ["DefaultSource"]
