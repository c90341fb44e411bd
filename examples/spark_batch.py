"""A batch: read a queue, and write the result to another one."""

from skep import Skep
from skep.spark import parse, session

with Skep() as mq:
    mq.queue("orders").push_many([{"id": n, "total": n * 1.5} for n in range(100)])

spark = session()
orders = parse(spark.read.format("skep").option("subscribe", "orders").load(), "id long, total double")
large = orders.where("data.total > 100").selectExpr("partition", "to_json(data) AS value")
large.write.format("skep").option("queue", "large-orders").mode("append").save()

print("large orders:", spark.read.format("skep").option("subscribe", "large-orders").load().count())
