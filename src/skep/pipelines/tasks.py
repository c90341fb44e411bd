"""Work that Spark's tasks do while the driver looks on."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
LOOK_EVERY = 0.5


def run(
    spark: SparkSession, work: Callable[[Item], Result], items: Sequence[Item], look: Callable[[], None] | None
) -> list[Result]:
    """Let a task do each item; return what came of it, in order. `look` is called now and then, and at the end."""
    return watched(spark, lambda context: context.parallelize(items, len(items)).map(work).collect(), look)


def watched(spark: SparkSession, job: Callable[[SparkContext], Result], look: Callable[[], None] | None) -> Result:
    """Run a job of Spark. If the caller is interrupted, so is the job, and no other of this session."""
    context, tag = spark.sparkContext, f"skep-{uuid4()}"

    def tagged() -> Result:
        context.addJobTag(tag)
        return job(context)

    with ThreadPoolExecutor(1) as driver:
        found = driver.submit(tagged)
        try:
            while look and not found.done():
                look()
                time.sleep(LOOK_EVERY)
            result = found.result()
        except BaseException:
            context.cancelJobsWithTag(tag)
            raise
    if look:
        look()
    return result


def cores(spark: SparkSession) -> int:
    return max(spark.sparkContext.defaultParallelism, 1)
