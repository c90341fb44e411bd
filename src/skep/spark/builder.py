"""A Spark session that has everything `format("skep")` needs."""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from skep.spark.java import ensure_java
from skep.spark.source import SkepDataSource

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


SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set for programs that spark-submit runs


def session(name: str = "skep", *, master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or return the session that runs, with the data source in it. `config` has the last word.

    Without a master it is this machine, or what spark-submit says.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run whatever python3 is on the PATH
    builder: SparkSession.Builder = SparkSession.builder.appName(name)
    where = master or (None if SUBMITTED in os.environ else "local[*]")
    own = {} if where is None else {"spark.master": where, **(LOCAL if where.startswith("local") else {})}
    settings = {**ALWAYS, **own, **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Make `format("skep")` known to a session of your own."""
    spark.dataSource.register(SkepDataSource)
    return spark
