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
    """Push each total once: Spark may repeat a batch, and the transaction id of a repeated total is the same."""
    value, once = "to_json(struct(orders, total)) AS value", "concat(partition, '-', orders) AS transaction_id"
    changed.selectExpr("partition", value, once).write.format("skep").option("queue", "totals").mode("append").save()


query = (
    totals.writeStream.outputMode("update")
    .foreachBatch(publish)
    .option("checkpointLocation", "checkpoints/orders")
    .trigger(availableNow=True)  # process the current messages; without this line the stream runs until it is stopped
    .start()
)
query.awaitTermination()
