"""A message that fails alone is retried by itself, in order, whatever happened to the other messages of its lease."""

import psycopg
import pytest

from tests.engine.acks import ack_one, as_batch, dead_letters, dead_offsets, in_transaction, runs
from tests.engine.verbs import Row, ack, broken, call, configure, lag, pass_time, pop, push, refused

Q = "orders"


def fail(connection: psycopg.Connection, message: Row, **options: object) -> None:
    call(connection, "fail", lease=message.lease, error=f"error {message.offset}", id=message.id, alone=True, **options)


@pytest.mark.parametrize("acknowledge", [as_batch, in_transaction])
def test_only_the_failed_message_is_retried(mq: psycopg.Connection, acknowledge):
    """Messages before it are done. Messages after it are delivered after it, and their attempt does not count."""
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(6))
    acknowledge(mq, pop(mq, Q, batch=5), "cca..")
    assert dead_offsets(mq, Q) == []
    assert runs(mq, Q) == [([2], 2), ([3, 4], 1), ([5], 1)]
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})


def test_a_message_that_fails_alone_has_its_own_attempts(mq: psycopg.Connection):
    """It is retried up to the retry limit, then dead-lettered; the rest continues at once with its first attempt."""
    configure(mq, Q, retry_limit=2, retry_delay=0)
    push(mq, Q, *range(4))
    as_batch(mq, pop(mq, Q), "ca..")
    for attempt in (2, 3):
        (message,) = pop(mq, Q)
        assert (message.offset, message.attempt) == (1, attempt)
        fail(mq, message)
    assert [(row.offset, row.attempts, row.error) for row in dead_letters(mq, Q)] == [(1, 3, "error 1")]
    assert runs(mq, Q) == [([2, 3], 1)]
    assert broken(mq) == {}


def test_failing_alone_ends_the_lease(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(3))
    batch = pop(mq, Q)
    fail(mq, batch[0])
    with refused("SK003"):
        ack_one(mq, batch[1], "c")
    assert runs(mq, Q) == [([0], 2), ([1, 2], 1)]


def test_the_rest_of_the_partition_waits(mq: psycopg.Connection):
    """In strict order nothing of the partition is delivered before the retry. Other partitions continue."""
    configure(mq, Q, retry_delay=100, retry_jitter=0)
    push(mq, Q, *range(4), partition="a")
    push(mq, Q, "b", partition="b")
    as_batch(mq, pop(mq, Q, batch=3, partition="a"), "ca.")
    assert runs(mq, Q) == [([0], 1)]
    pass_time(mq, 101)
    assert runs(mq, Q) == [([1], 2), ([2], 1), ([3], 1)]


def test_without_order_only_the_failed_message_waits(mq: psycopg.Connection):
    """With concurrency above 1 the other messages are delivered at once, each once."""
    configure(mq, Q, retry_delay=100, retry_jitter=0, concurrency=3)
    push(mq, Q, *range(8))
    as_batch(mq, pop(mq, Q, batch=7), ".ca.a.c")
    assert broken(mq) == {}
    assert sorted(runs(mq, Q, batch=100)) == [([0], 1), ([3], 1), ([5], 1), ([7], 1)]
    assert lag(mq) == {"Default": 6}  # the cursor is at the lowest message that is not done
    pass_time(mq, 101)
    assert sorted(runs(mq, Q, batch=100)) == [([2], 2), ([4], 2)]
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})


def test_several_fail_alone(mq: psycopg.Connection):
    """Each is retried by itself, and messages between them keep their place."""
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(7))
    as_batch(mq, pop(mq, Q), ".aac.a.")
    assert runs(mq, Q) == [([0], 1), ([1], 2), ([2], 2), ([4], 1), ([5], 2), ([6], 1)]
    assert broken(mq) == {}


def test_plain_failures_of_the_lease_are_retried_with_it(mq: psycopg.Connection):
    """The verdict of the batch is over, so each of them is retried by itself too."""
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(4))
    batch = pop(mq, Q)
    ack_one(mq, batch[0], "f")
    ack_one(mq, batch[1], "c")
    fail(mq, batch[2])
    assert dead_offsets(mq, Q) == []
    assert runs(mq, Q) == [([0], 2), ([2], 2), ([3], 1)]


def test_the_rest_is_completed_in_the_same_call(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(4))
    batch = pop(mq, Q)
    lease, failed = batch[0].lease, batch[2].id
    call(mq, "ack_many", leases=[lease] * 2, ids=[failed, None], statuses=["failed_alone", "completed"])
    assert dead_offsets(mq, Q) == []
    assert runs(mq, Q) == [([2], 2)]


def test_a_completed_message_does_not_fail_alone(mq: psycopg.Connection):
    """The lease stays, as after any late failure."""
    push(mq, Q, *range(2))
    batch = pop(mq, Q)
    ack_one(mq, batch[0], "c")
    fail(mq, batch[0])
    ack_one(mq, batch[1], "c")
    assert runs(mq, Q) == []


def test_other_messages_of_a_returned_batch_keep_their_attempt(mq: psycopg.Connection):
    """In a batch at its second attempt, the failed message goes to its third and the others stay at the second."""
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(4))
    call(mq, "fail", lease=pop(mq, Q, batch=3)[0].lease, error="all")
    fail(mq, pop(mq, Q)[1])
    assert runs(mq, Q) == [([0], 2), ([1], 3), ([2], 2), ([3], 1)]


def test_auto_ack_completes_the_parts(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(6))
    as_batch(mq, pop(mq, Q, batch=5), ".aca.")
    came = []
    while batch := pop(mq, Q, batch=1, auto_ack=True):
        came += [(message.offset, message.attempt) for message in batch]
    assert came == [(0, 1), (1, 2), (3, 2), (4, 1), (5, 1)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_deleted_message_that_failed_alone_holds_nothing_up(mq: psycopg.Connection, concurrency: int):
    """It is deleted before its retry, and the cursor passes it."""
    configure(mq, Q, retry_delay=0, concurrency=concurrency)
    push(mq, Q, *range(3))
    batch = pop(mq, Q)
    as_batch(mq, batch, "cac")
    call(mq, "delete_message", id=batch[1].id)
    assert pop(mq, Q) == []
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})


def test_completing_a_deleted_message_is_not_a_success(mq: psycopg.Connection):
    """All messages that are left have failed: they are retried, although the rest of the lease was completed."""
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(3))
    call(mq, "delete_message", id=pop(mq, Q)[1].id)
    call(mq, "seek", group_name="g", queue=Q, position="beginning")
    first, last = pop(mq, Q)
    statuses = ["failed", "failed", "completed"]
    call(mq, "ack_many", leases=[first.lease] * 3, ids=[first.id, last.id, None], statuses=statuses)
    assert dead_offsets(mq, Q) == []
    assert runs(mq, Q) == [([0, 2], 2)]


def test_retry_after(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=86_400)
    push(mq, Q, *range(2))
    fail(mq, pop(mq, Q)[0], retry_after=100)
    pass_time(mq, 99)
    assert pop(mq, Q) == []
    pass_time(mq, 2)
    assert runs(mq, Q) == [([0], 2), ([1], 1)]


def test_the_retry_limit_of_the_group_applies(mq: psycopg.Connection):
    configure(mq, Q, retry_limit=9)
    call(mq, "subscribe", group_name="g", queue=Q, retry_limit=0)
    push(mq, Q, *range(2))
    fail(mq, pop(mq, Q)[0])
    assert dead_offsets(mq, Q) == [0]
    assert runs(mq, Q) == [([1], 1)]


def test_a_failure_alone_is_logged(mq: psycopg.Connection):
    configure(mq, Q, retry_delay=0, lease_log_seconds=60)
    push(mq, Q, *range(3))
    as_batch(mq, pop(mq, Q), "ca.")
    ack(mq, pop(mq, Q))
    log = mq.execute("SELECT reason, attempt, returned::text FROM skep.lease_log ORDER BY id").fetchall()
    assert log == [("failed_alone", 1, "{[1,3)}"), ("completed", 2, "{}")]


def test_a_whole_lease_cannot_fail_alone(mq: psycopg.Connection):
    push(mq, Q, 0)
    (message,) = pop(mq, Q)
    with refused("SK001", 'status "failed_alone" needs a message'):
        call(mq, "fail", lease=message.lease, error="x", alone=True)
    ack(mq, [message])
