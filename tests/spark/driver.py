"""A driver of its own, to be killed: copies queue `q` to queue `copy`, in small batches, until it is."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from skep.spark import session
from tests.spark.work import FAST


def copying(spark: SparkSession, url: str, checkpoint: str, sink: str = "skep") -> DataStreamWriter:
    reader = spark.readStream.format("skep").options(url=url, subscribe="q", startingOffsets="earliest")
    frame: DataFrame = reader.option("maxOffsetsPerTrigger", "20").load().drop("queue")
    return frame.writeStream.format(sink).options(url=url, queue="copy", checkpointLocation=checkpoint)


def main(url: str, checkpoint: str) -> None:
    spark = session("driver", master="local[2]", config=FAST)
    spark.sparkContext.setLogLevel("OFF")
    copying(spark, url, checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
