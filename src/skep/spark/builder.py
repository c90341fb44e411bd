"""A Spark session with everything that `format("skep")` needs."""

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
# On one machine Spark must not listen on other interfaces, and a shuffle of a few rows must not be 200 tasks.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set for programs that spark-submit runs


def session(name: str = "skep", *, master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark, or return the running session, with the data source registered. `config` overrides all defaults.

    Without `master`, Spark runs on this machine, or on the master of spark-submit.
    """
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the python3 of the PATH
    builder: SparkSession.Builder = SparkSession.builder.appName(name)
    where = master or (None if SUBMITTED in os.environ else "local[*]")
    own = {} if where is None else {"spark.master": where, **(LOCAL if where.startswith("local") else {})}
    settings = {**ALWAYS, **own, **(config or {})}
    for key, value in settings.items():
        builder = builder.config(key, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Register `format("skep")` with an existing session."""
    spark.dataSource.register(SkepDataSource)
    return spark
