"""Dead letters: list them with their errors, and redrive them when the cause is fixed."""

from skep import Skep

with Skep() as mq:
    orders = mq.queue("orders")
    orders.push_many([{"id": 1, "total": 99.5}, {"id": 2, "total": "a lot"}])

    for batch in orders.consume(group="billing", batch=2, idle_timeout=1):
        for message in batch:
            if isinstance(message.payload["total"], str):
                batch.fail(message, "total is not a number")
            else:
                batch.ack(message)

    (letter,) = mq.dead_letters("orders", group="billing")
    print(letter.payload, "failed:", letter.error)

    plan = mq.redrive("orders", group="billing", dry_run=True)
    print("to redrive:", len(plan))
    mq.redrive("orders", group="billing", done_by="ann")
    print("redriven:", [message.payload["id"] for message in orders.pop(group="billing", batch=10)])
