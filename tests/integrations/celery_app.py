"""Tasks for the tests of the transport. The table `ran` has a row for each start and each end of a task."""

import os
import time

import psycopg
from celery import Celery, Task
from celery.exceptions import Reject

from skep.integrations.celery import broker

URL = os.environ["SKEP_DATABASE_URL"]
app = Celery("tests", broker=broker(URL))
app.conf.update(
    broker_transport_options={"visibility_timeout": 2},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_ignore_result=True,
)


def note(name: str, what: str) -> None:
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute("INSERT INTO ran (name, what, pid) VALUES (%s, %s, %s)", (name, what, os.getpid()))


@app.task
def work(name: str, seconds: float = 0) -> None:
    note(name, "began")
    time.sleep(seconds)
    note(name, "ended")


@app.task(acks_late=True)
def late(name: str, seconds: float = 0) -> None:
    work(name, seconds)


@app.task(bind=True, max_retries=3, default_retry_delay=0)
def fails_twice(self: Task, name: str) -> None:
    note(name, f"try {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry()


@app.task(bind=True, acks_late=True)
def rejected(self: Task, name: str) -> None:
    """Retry once, then fail."""
    again = not self.request.delivery_info["redelivered"] and not os.environ.get("AGAIN")
    os.environ["AGAIN"] = "1"
    note(name, "rejected")
    raise Reject("no good", requeue=again)


@app.task
def calls(name: str) -> None:
    """Send a task from inside a task, in a forked child."""
    note(name, "began")
    work.delay(f"{name}'s")
