"""A stream: write the orders and the total of each customer to another queue. Run it again, and it continues."""

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
    """Spark may repeat a batch; the transaction id ensures that a customer's total is pushed once per order."""
    value, once = "to_json(struct(orders, total)) AS value", "concat(partition, '-', orders) AS transaction_id"
    changed.selectExpr("partition", value, once).write.format("skep").option("queue", "totals").mode("append").save()


query = (
    totals.writeStream.outputMode("update")
    .foreachBatch(publish)
    .option("checkpointLocation", "checkpoints/orders")
    .trigger(availableNow=True)  # stop after the available messages; without it, the stream runs until it is stopped
    .start()
)
query.awaitTermination()
