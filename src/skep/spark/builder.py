"""A Spark session that has everything `format("skep")` needs."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from skep.errors import ConfigError
from skep.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
# One machine: nothing listens to the outside, and no shuffle makes 200 tasks of a few rows.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def session(name: str = "skep", *, master: str = "local[*]", config: Mapping[str, str] | None = None) -> "SparkSession":
    """Start Spark, or return the session that runs, with the data source in it. `config` has the last word."""
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run whatever python3 is on the PATH
    builder = _pyspark().builder.appName(name).master(master)
    settings = {**ALWAYS, **(LOCAL if master.startswith("local") else {}), **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: "SparkSession") -> "SparkSession":
    """Make `format("skep")` known to a session of your own."""
    from skep.spark.source import SkepDataSource  # noqa: PLC0415  # needs pyspark

    spark.dataSource.register(SkepDataSource)
    return spark


def _pyspark() -> "type[SparkSession]":
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        raise ConfigError("pyspark is not installed", hint="pip install 'skep[spark]'") from None
    return SparkSession
