"""Spark looks for modules named pyspark_*: with this one `format("skep")` works wherever Skep is installed."""

from skep.spark.source import SkepDataSource as DefaultSource

__all__ = ["DefaultSource"]
