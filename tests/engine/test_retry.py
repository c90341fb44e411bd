"""Failing and coming again: how often, when, and in which order."""

import psycopg
import pytest

from tests.engine.answers import WAYS, dead_letters, dead_offsets, one_by_one, runs, say
from tests.engine.verbs import ack, broken, call, configure, lag, pass_time, pop, push

Q = "orders"
LONG = 86_400  # seconds: past every retry


def seconds_until_retry(connection: psycopg.Connection) -> float:
    row = connection.execute("SELECT extract(epoch FROM ready_at - clock_timestamp()) FROM skep.runs").fetchone()
    assert row
    return float(row[0])


@pytest.mark.parametrize("answer", WAYS)
@pytest.mark.parametrize("retry_limit", [0, 1, 3])
def test_a_failing_batch(conn: psycopg.Connection, answer, retry_limit: int):
    """C3: retry_limit = N gives N + 1 deliveries of the same batch, then dead letters; the next batch starts afresh."""
    configure(conn, Q, retry_limit=retry_limit, retry_delay=0)
    push(conn, Q, *range(6))
    for first in (0, 3):
        for attempt in range(1, retry_limit + 2):
            batch = pop(conn, Q, batch=3)
            assert [(message.offset, message.attempt) for message in batch] == [
                (first, attempt), (first + 1, attempt), (first + 2, attempt),
            ]  # fmt: skip
            answer(conn, batch, "fff")
    assert pop(conn, Q) == []
    assert dead_offsets(conn, Q) == [0, 1, 2, 3, 4, 5]
    assert {row.attempts for row in dead_letters(conn, Q)} == {retry_limit + 1}
    assert lag(conn) == {"Default": 0}


def test_the_same_batch_comes_even_if_more_is_asked_for(conn: psycopg.Connection):
    """C3: later messages do not join a batch that comes again."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(5))
    one_by_one(conn, pop(conn, Q, batch=2), "ff")
    assert runs(conn, Q, batch=100) == [([0, 1], 2), ([2, 3, 4], 1)]


def test_a_smaller_batch_takes_the_front_of_what_comes_again(conn: psycopg.Connection):
    """C3: a returned batch that is popped in parts keeps its order and its count."""
    configure(conn, Q, retry_delay=0)
    push(conn, Q, *range(6))
    one_by_one(conn, pop(conn, Q, batch=5), "fffff")
    front = pop(conn, Q, batch=2)
    assert [(message.offset, message.attempt) for message in front] == [(0, 2), (1, 2)]
    one_by_one(conn, front, "ff")
    assert runs(conn, Q, batch=2) == [([0, 1], 3), ([2, 3], 2), ([4], 2), ([5], 1)]
    assert broken(conn) == {}


def test_failed_messages_come_again_before_later_ones(conn: psycopg.Connection):
    """C1: partial_failure = 'retry': in order, until retry_limit, then dead letters."""
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
    """C1: what comes again with gaps between is cut by the number of messages, not of offsets."""
    configure(conn, Q, partial_failure="retry", retry_delay=0)
    push(conn, Q, *range(9))
    one_by_one(conn, pop(conn, Q, batch=8), "fcfccfcf")
    assert runs(conn, Q, batch=3) == [([0, 2, 5], 2), ([7], 2), ([8], 1)]
    assert broken(conn) == {}


def test_what_was_completed_before_does_not_spare_a_batch_that_fails(conn: psycopg.Connection):
    """C1: each delivery is judged by its own answers: what was completed before does not count as success."""
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
def test_released_is_not_charged(conn: psycopg.Connection, batch_size: int):
    """C1: release gives everything back at once, as often as one likes; the attempt stays."""
    configure(conn, Q, retry_limit=0, retry_delay=LONG)
    push(conn, Q, *range(batch_size))
    for _ in range(5):
        batch = pop(conn, Q)
        assert [(message.offset, message.attempt) for message in batch] == [(n, 1) for n in range(batch_size)]
        call(conn, "release", lease=batch[0].lease)
    assert lag(conn) == {"Default": batch_size}
    assert dead_offsets(conn, Q) == []


def test_release_keeps_what_was_answered(conn: psycopg.Connection):
    """C1: completed ones are done, a failed one beside them is a dead letter, the rest comes again uncharged."""
    configure(conn, Q, retry_delay=LONG)
    push(conn, Q, *range(5))
    batch = pop(conn, Q, batch=4)
    one_by_one(conn, batch, "cf..")
    call(conn, "release", lease=batch[0].lease)
    assert dead_offsets(conn, Q) == [1]
    assert runs(conn, Q) == [([2, 3], 1), ([4], 1)]


def test_the_status_retry_releases_the_lease(conn: psycopg.Connection):
    """C1: 'release' for one message: the lease is released, what the same call completed is kept."""
    configure(conn, Q, retry_delay=LONG)
    push(conn, Q, *range(3))
    batch = pop(conn, Q)
    ids = [message.id for message in batch]
    statuses = ["completed", "release", "completed"]
    call(conn, "ack_many", leases=[batch[0].lease] * 3, ids=ids, statuses=statuses)
    assert runs(conn, Q) == [([1], 1)]


def test_release_after_failures_does_not_reset_the_count(conn: psycopg.Connection):
    """C3: what is released goes on with the attempt it had."""
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
def test_the_wait_doubles(conn: psycopg.Connection, retry_delay: float, expected: list[float]):
    """C1: retry_delay grows exponentially up to an hour, a quarter more or less."""
    configure(conn, Q, retry_delay=retry_delay, retry_limit=100)
    push(conn, Q, 0)
    for delay in expected:
        one_by_one(conn, pop(conn, Q), "f")
        assert 0.75 * delay - 0.4 <= seconds_until_retry(conn) <= 1.25 * delay
        assert pop(conn, Q) == []
        assert pop(conn, Q, partition="Default") == []
        pass_time(conn, 1.25 * delay)


def test_the_wait_is_jittered(conn: psycopg.Connection):
    """C1: batches that failed together do not come again together."""
    configure(conn, Q, retry_delay=1000)
    for lane in range(40):
        push(conn, Q, lane, partition=f"lane {lane}")
    while batch := pop(conn, Q):
        one_by_one(conn, batch, "f")
    spread = conn.execute("SELECT extract(epoch FROM max(ready_at) - min(ready_at)) FROM skep.runs").fetchone()
    assert spread
    assert spread[0] > 100


def test_nothing_overtakes_a_batch_that_waits(conn: psycopg.Connection):
    """C1: strict order: later messages of the lane wait for the retry, other lanes do not."""
    configure(conn, Q, retry_delay=100)
    push(conn, Q, *range(2), partition="a")
    one_by_one(conn, pop(conn, Q, batch=1), "f")
    assert pop(conn, Q) == []
    pass_time(conn, 200)
    assert runs(conn, Q) == [([0], 2), ([1], 1)]


def test_an_expired_lease_is_not_made_to_wait(conn: psycopg.Connection):
    """C1: the lease itself was the wait: retry_delay is for failures."""
    configure(conn, Q, retry_delay=LONG, lease_time=10)
    push(conn, Q, 0)
    pop(conn, Q)
    pass_time(conn, 11)
    assert runs(conn, Q) == [([0], 2)]


def test_groups_fail_alone(mq: psycopg.Connection):
    """C1: one group done, one retrying, one with a dead letter: independent outcomes (scenario 45)."""
    configure(mq, Q, retry_delay=0, retry_limit=1)
    push(mq, Q, 0)
    ack(mq, pop(mq, Q, "done"))
    say(mq, pop(mq, Q, "retrying")[0], "f")
    for _ in range(2):
        say(mq, pop(mq, Q, "dead")[0], "f")
    assert [row.group_name for row in dead_letters(mq, Q)] == ["dead"]
    came = {group: [message.attempt for message in pop(mq, Q, group)] for group in ("done", "retrying", "dead")}
    assert came == {"done": [], "retrying": [2], "dead": []}
