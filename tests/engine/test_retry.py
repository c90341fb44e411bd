"""Failed messages are delivered again: how often, when, and in which order."""

import psycopg
import pytest

from tests.engine.acks import WAYS, ack_one, dead_letters, dead_offsets, one_by_one, runs
from tests.engine.verbs import ack, broken, call, configure, lag, pass_time, pop, push

Q = "orders"
LONG = 86_400  # seconds: later than every retry


def seconds_until_retry(connection: psycopg.Connection) -> float:
    row = connection.execute("SELECT extract(epoch FROM ready_at - clock_timestamp()) FROM skep.runs").fetchone()
    assert row
    return float(row[0])


@pytest.mark.parametrize("acknowledge", WAYS)
@pytest.mark.parametrize("retry_limit", [0, 1, 3])
def test_a_failing_batch(conn: psycopg.Connection, acknowledge, retry_limit: int):
    """retry_limit = N gives N + 1 deliveries of the same batch, then dead letters.

    The next batch starts at attempt 1 (scenario C3).
    """
    configure(conn, Q, retry_limit=retry_limit, retry_delay=0)
    push(conn, Q, *range(6))
    for first in (0, 3):
        for attempt in range(1, retry_limit + 2):
            batch = pop(conn, Q, batch=3)
            assert [(message.offset, message.attempt) for message in batch] == [
                (first, attempt), (first + 1, attempt), (first + 2, attempt),
            ]  # fmt: skip
            acknowledge(conn, batch, "fff")
    assert pop(conn, Q) == []
    assert dead_offsets(conn, Q) == [0, 1, 2, 3, 4, 5]
    assert {row.attempts for row in dead_letters(conn, Q)} == {retry_limit + 1}
    assert lag(conn) == {"Default": 0}


def test_the_same_batch_is_delivered_again_even_if_more_is_requested(conn: psycopg.Connection):
    """Later messages do not join a returned batch (scenario C3)."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(5))
    one_by_one(conn, pop(conn, Q, batch=2), "ff")
    assert runs(conn, Q, batch=100) == [([0, 1], 2), ([2, 3, 4], 1)]


def test_a_smaller_batch_takes_the_front_of_a_returned_one(conn: psycopg.Connection):
    """A returned batch that is popped in parts keeps its order and its attempt (scenario C3)."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(6))
    one_by_one(conn, pop(conn, Q, batch=5), "fffff")
    front = pop(conn, Q, batch=2)
    assert [(message.offset, message.attempt) for message in front] == [(0, 2), (1, 2)]
    one_by_one(conn, front, "ff")
    assert runs(conn, Q, batch=2) == [([0, 1], 3), ([2, 3], 2), ([4], 2), ([5], 1)]
    assert broken(conn) == {}


def test_failed_messages_are_delivered_again_before_later_ones(conn: psycopg.Connection):
    """With partial_failure = 'retry': in order, until retry_limit, then dead letters (scenario C1)."""
    configure(conn, Q, partial_failure="retry", retry_limit=2, retry_delay=0)
    push(conn, Q, *range(8))
    one_by_one(conn, pop(conn, Q, batch=6), "fcfcfc")
    second = pop(conn, Q, batch=100)
    assert [(message.offset, message.attempt) for message in second] == [(0, 2), (2, 2), (4, 2)]
    one_by_one(conn, second, "cff")
    third = pop(conn, Q, batch=100)
    assert [(message.offset, message.attempt) for message in third] == [(2, 3), (4, 3)]
    assert dead_offsets(conn, Q) == []
    one_by_one(conn, third, "fc")
    assert [(row.offset, row.attempts) for row in dead_letters(conn, Q)] == [(2, 3)]
    assert runs(conn, Q) == [([6, 7], 1)]


def test_failed_messages_are_popped_in_parts(conn: psycopg.Connection):
    """A returned run with gaps is cut by the number of messages, not of offsets (scenario C1)."""
    configure(conn, Q, partial_failure="retry", retry_delay=0)
    push(conn, Q, *range(9))
    one_by_one(conn, pop(conn, Q, batch=8), "fcfccfcf")
    assert runs(conn, Q, batch=3) == [([0, 2, 5], 2), ([7], 2), ([8], 1)]
    assert broken(conn) == {}


def test_earlier_completions_do_not_count_for_a_batch_that_fails(conn: psycopg.Connection):
    """Each delivery is judged by its own acks (scenario C1)."""
    configure(conn, Q, retry_delay=0, lease_time=10)
    push(conn, Q, *range(3))
    one_by_one(conn, pop(conn, Q), "c..")
    pass_time(conn, 11)
    for attempt in (2, 3, 4):
        batch = pop(conn, Q, batch=1)
        assert [(message.offset, message.attempt) for message in batch] == [(1, attempt)]
        one_by_one(conn, batch, "f")
    assert dead_offsets(conn, Q) == [1]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_release_does_not_count_as_an_attempt(conn: psycopg.Connection, batch_size: int):
    """A release returns everything at once, any number of times; the attempt stays (scenario C1)."""
    configure(conn, Q, retry_limit=0, retry_delay=LONG)
    push(conn, Q, *range(batch_size))
    for _ in range(5):
        batch = pop(conn, Q)
        assert [(message.offset, message.attempt) for message in batch] == [(n, 1) for n in range(batch_size)]
        call(conn, "release", lease=batch[0].lease)
    assert lag(conn) == {"Default": batch_size}
    assert dead_offsets(conn, Q) == []


def test_a_release_keeps_earlier_acks(conn: psycopg.Connection):
    """Completed messages are done, a failed one is a dead letter, the rest is delivered again at the same attempt.

    Scenario c1.
    """
    configure(conn, Q, retry_delay=LONG)
    push(conn, Q, *range(5))
    batch = pop(conn, Q, batch=4)
    one_by_one(conn, batch, "cf..")
    call(conn, "release", lease=batch[0].lease)
    assert dead_offsets(conn, Q) == [1]
    assert runs(conn, Q) == [([2, 3], 1), ([4], 1)]


def test_the_status_retry_releases_the_lease(conn: psycopg.Connection):
    """'release' for one message releases the lease; what the same call completed stays completed (scenario C1)."""
    configure(conn, Q, retry_delay=LONG)
    push(conn, Q, *range(3))
    batch = pop(conn, Q)
    ids = [message.id for message in batch]
    statuses = ["completed", "release", "completed"]
    call(conn, "ack_many", leases=[batch[0].lease] * 3, ids=ids, statuses=statuses)
    assert runs(conn, Q) == [([1], 1)]


def test_a_release_after_failures_keeps_the_attempt(conn: psycopg.Connection):
    """A released batch is delivered again at the attempt it had (scenario C3)."""
    configure(conn, Q, retry_delay=0, retry_limit=1)
    push(conn, Q, 0)
    one_by_one(conn, pop(conn, Q), "f")
    call(conn, "release", lease=pop(conn, Q)[0].lease)
    batch = pop(conn, Q)
    assert batch[0].attempt == 2
    one_by_one(conn, batch, "f")
    assert dead_offsets(conn, Q) == [0]


@pytest.mark.parametrize(("retry_delay", "expected"), [
    (10, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]),
    (0.5, [0.5, 1, 2, 4]),
    (7200, [7200, 7200]),
])  # fmt: skip
def test_the_retry_delay_doubles(conn: psycopg.Connection, retry_delay: float, expected: list[float]):
    """retry_delay grows exponentially up to an hour, a quarter more or less (scenario C1)."""
    configure(conn, Q, retry_delay=retry_delay, retry_limit=100)
    push(conn, Q, 0)
    for delay in expected:
        one_by_one(conn, pop(conn, Q), "f")
        assert 0.75 * delay - 0.4 <= seconds_until_retry(conn) <= 1.25 * delay
        assert pop(conn, Q) == []
        assert pop(conn, Q, partition="Default") == []
        pass_time(conn, 1.25 * delay)


def test_the_retry_delay_has_jitter(conn: psycopg.Connection):
    """Batches that failed together are not all delivered again at the same time (scenario C1)."""
    configure(conn, Q, retry_delay=1000)
    for partition in range(40):
        push(conn, Q, partition, partition=f"partition {partition}")
    while batch := pop(conn, Q):
        one_by_one(conn, batch, "f")
    spread = conn.execute("SELECT extract(epoch FROM max(ready_at) - min(ready_at)) FROM skep.runs").fetchone()
    assert spread
    assert spread[0] > 100


def test_nothing_overtakes_a_batch_that_waits_for_its_retry(conn: psycopg.Connection):
    """In strict order later messages of the partition wait, other partitions do not (scenario C1)."""
    configure(conn, Q, retry_delay=100)
    push(conn, Q, *range(2), partition="a")
    one_by_one(conn, pop(conn, Q, batch=1), "f")
    assert pop(conn, Q) == []
    pass_time(conn, 200)
    assert runs(conn, Q) == [([0], 2), ([1], 1)]


def test_an_expired_lease_is_retried_without_delay(conn: psycopg.Connection):
    """The lease itself was the delay: retry_delay is for failures (scenario C1)."""
    configure(conn, Q, retry_delay=LONG, lease_time=10)
    push(conn, Q, 0)
    pop(conn, Q)
    pass_time(conn, 11)
    assert runs(conn, Q) == [([0], 2)]


def test_groups_fail_independently(mq: psycopg.Connection):
    """One group is done, one retries, one has a dead letter (scenarios C1, 45)."""
    configure(mq, Q, retry_delay=0, retry_limit=1)
    push(mq, Q, 0)
    ack(mq, pop(mq, Q, "done"))
    ack_one(mq, pop(mq, Q, "retrying")[0], "f")
    for _ in range(2):
        ack_one(mq, pop(mq, Q, "dead")[0], "f")
    assert [row.group_name for row in dead_letters(mq, Q)] == ["dead"]
    came = {group: [message.attempt for message in pop(mq, Q, group)] for group in ("done", "retrying", "dead")}
    assert came == {"done": [], "retrying": [2], "dead": []}
