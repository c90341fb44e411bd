"""The first message: push, consume, ack. Without a URL, Skep starts its embedded PostgreSQL."""

from skep import Skep

with Skep() as mq:
    orders = mq.queue("orders")
    orders.push({"id": 1, "total": 99.5}, partition="customer-7")

    for batch in orders.consume(group="billing", idle_timeout=1):
        for message in batch:
            print("got", message.payload)
