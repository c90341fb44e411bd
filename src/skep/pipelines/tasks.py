"""Run work in Spark's tasks while the driver reports progress."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
REPORT_EVERY = 0.5


def run(
    spark: SparkSession, work: Callable[[Item], Result], items: Sequence[Item], report: Callable[[], None] | None
) -> list[Result]:
    """Run `work` on each item, in a task of its own. Return the results in order.

    `report` is called twice a second, and at the end.
    """
    return run_job(spark, lambda context: context.parallelize(items, len(items)).map(work).collect(), report)


def run_job(spark: SparkSession, job: Callable[[SparkContext], Result], report: Callable[[], None] | None) -> Result:
    """Run a Spark job. If the caller is interrupted, cancel this job, and no other job of the session."""
    context, tag = spark.sparkContext, f"skep-{uuid4()}"

    def tagged() -> Result:
        context.addJobTag(tag)
        return job(context)

    with ThreadPoolExecutor(1) as driver:
        found = driver.submit(tagged)
        try:
            while report and not found.done():
                report()
                time.sleep(REPORT_EVERY)
            result = found.result()
        except BaseException:
            context.cancelJobsWithTag(tag)
            raise
    if report:
        report()
    return result


def cores(spark: SparkSession) -> int:
    """Return the number of tasks that the cluster can run at the same time."""
    return max(spark.sparkContext.defaultParallelism, 1)
