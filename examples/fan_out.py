"""Fan-out: every group gets each message, at its own pace."""

from skep import Skep

with Skep() as mq:
    orders = mq.queue("orders")
    orders.configure(semantics="pub_sub", completed_retention_seconds=0)
    for group in ("billing", "mail"):
        mq.subscribe(group, "orders")

    orders.push({"id": 1})
    orders.pop(group="billing").ack()

    (message,) = mq.message_status("orders", "Default")
    print("done:", message.completed_consumer_groups, "of", message.required_consumer_groups)
    print("pending:", *message.pending_groups)

    orders.pop(group="mail").ack()
    deleted = mq.retain()
    print("every group is done: deleted up to", deleted[0].end_offset)
