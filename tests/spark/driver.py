"""A driver that tests kill. It copies queue `q` to `copy`, and `r` to `copy of r`, in small batches."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from skep.spark import session
from tests.spark.work import FAST

COPIES = {"q": "copy", "r": "copy of r"}


def copying(spark: SparkSession, url: str, checkpoint: str, sink: str = "skep", queue: str = "q") -> DataStreamWriter:
    reader = spark.readStream.format("skep").options(url=url, subscribe=queue, startingOffsets="earliest")
    frame = reader.option("maxOffsetsPerTrigger", "20").load().drop("queue")
    return frame.writeStream.format(sink).options(url=url, queue=COPIES[queue], checkpointLocation=checkpoint)


def main(url: str, checkpoint: str) -> None:
    spark = session("driver", master="local[2]", config=FAST)
    spark.sparkContext.setLogLevel("OFF")
    for queue in COPIES:
        copying(spark, url, f"{checkpoint}/{queue}", queue=queue).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
