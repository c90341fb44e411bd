"""Delayed messages: a reminder for later, which is cancelled if the order is paid."""

from datetime import timedelta

from skep import Skep

with Skep() as mq:
    reminders = mq.queue("reminders")
    unpaid = reminders.push({"order": 7}, delay=timedelta(hours=2))
    print(unpaid.status, "until", unpaid.due_at)
    print("waiting:", [message.payload for message in reminders.delayed()])
    print("paid, cancelled:", mq.cancel_delayed(unpaid.id))

    reminders.push({"order": 8}, delay=0.2)
    for message in reminders.pop(wait=10):
        print("remind:", message.payload)
