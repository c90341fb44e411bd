"""A stream: write the number and the total of each customer's orders to another queue. A second run continues."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from skep import Skep
from skep.spark import parse, session

with Skep() as mq:
    mq.queue("orders").push({"id": 1, "total": 99.5}, partition="customer-7")

spark = session()
messages = spark.readStream.format("skep").option("subscribe", "orders").option("startingOffsets", "earliest").load()
orders = parse(messages, "id long, total double").groupBy("partition")
totals = orders.agg(f.count("*").alias("orders"), f.sum("data.total").alias("total"))


def publish(changed: DataFrame, _: int) -> None:
    """Spark may do a batch again; a customer's total after so many orders is pushed once, by its transaction id."""
    value, once = "to_json(struct(orders, total)) AS value", "concat(partition, '-', orders) AS transaction_id"
    changed.selectExpr("partition", value, once).write.format("skep").option("queue", "totals").mode("append").save()


query = (
    totals.writeStream.outputMode("update")
    .foreachBatch(publish)
    .option("checkpointLocation", "checkpoints/orders")
    .trigger(availableNow=True)  # what is there now; without it, the stream runs until it is stopped
    .start()
)
query.awaitTermination()
