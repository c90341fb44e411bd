"""A stream: count the orders of each customer as they come. Run it again, and it goes on where it was."""

from pyspark.sql import functions as f

from skep import Skep
from skep.spark import parse, session

with Skep() as mq:
    mq.queue("orders").push({"id": 1, "total": 99.5}, partition="customer-7")

spark = session()
messages = spark.readStream.format("skep").option("subscribe", "orders").option("startingOffsets", "earliest").load()
orders = parse(messages, "id long, total double").groupBy("partition").agg(f.count("*"), f.sum("data.total"))
query = (
    orders.writeStream.outputMode("update")
    .format("console")
    .option("checkpointLocation", "checkpoints/orders")
    .trigger(availableNow=True)  # what is there now; without it, the stream runs until it is stopped
    .start()
)
query.awaitTermination()
