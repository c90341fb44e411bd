"""Replay: a group reads again from a position, or a new group starts at one. Other groups are not affected."""

from datetime import UTC, datetime, timedelta

from skep import Skep

with Skep() as mq:
    orders = mq.queue("orders")
    orders.push_many([{"id": n} for n in range(5)])
    orders.pop(group="billing", batch=5).ack()

    orders.seek("billing", 3)  # an offset; also "beginning", "end" or a time
    print("again:", [message.payload["id"] for message in orders.pop(group="billing", batch=5)])

    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    mq.subscribe("audit", "orders", mode="timestamp", start_from=hour_ago)
    print("audit:", [message.payload["id"] for message in orders.pop(group="audit", batch=5)])
