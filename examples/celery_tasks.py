"""Celery tasks with Skep as the broker. Run in this directory: celery -A celery_tasks worker"""

import os

from celery import Celery

from skep.integrations.celery import broker

app = Celery("celery_tasks", broker=broker(os.environ["SKEP_DATABASE_URL"]))


@app.task(acks_late=True)
def bill(order: int) -> None:
    print(f"billing {order}")


if __name__ == "__main__":
    for number in range(3):
        bill.delay(number)
