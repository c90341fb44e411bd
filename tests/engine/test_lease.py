"""Leases: who may answer, for how long, and that a lease which is over changes nothing."""

import uuid
from collections.abc import Callable

import psycopg
import pytest

from tests.engine.answers import as_batch, one_by_one, progress, runs, say
from tests.engine.verbs import Row, ack, broken, call, configure, lag, pass_time, pop, push, refused

Q = "orders"
LEASE_SECONDS = 300


def take_over(connection: psycopg.Connection, _: list[Row]) -> None:
    pass_time(connection, LEASE_SECONDS + 1)
    assert pop(connection, Q) != []


def expire(connection: psycopg.Connection, _: list[Row]) -> None:
    pass_time(connection, LEASE_SECONDS + 1)


def release(connection: psycopg.Connection, batch: list[Row]) -> None:
    call(connection, "release", lease=batch[0].lease)


def finish(connection: psycopg.Connection, batch: list[Row]) -> None:
    ack(connection, batch)


def fail(connection: psycopg.Connection, batch: list[Row]) -> None:
    call(connection, "fail", lease=batch[0].lease, error="down")


def seek(connection: psycopg.Connection, _: list[Row]) -> None:
    call(connection, "seek", group_name="g", queue=Q, position="beginning")


def seek_and_pop(connection: psycopg.Connection, batch: list[Row]) -> None:
    seek(connection, batch)
    pop(connection, Q)


def delete_group(connection: psycopg.Connection, _: list[Row]) -> None:
    call(connection, "delete_group", group_name="g", queue=Q)


def delete_partition(connection: psycopg.Connection, _: list[Row]) -> None:
    call(connection, "delete_partition", queue=Q, partition="Default")


def delete_queue(connection: psycopg.Connection, _: list[Row]) -> None:
    call(connection, "delete_queue", queue=Q)


ENDS = [
    take_over, expire, release, finish, fail, seek, seek_and_pop, delete_group, delete_partition, delete_queue,
]  # fmt: skip


def assert_refused(connection: psycopg.Connection, lease: uuid.UUID | None, message: uuid.UUID) -> None:
    """Assert that no verb accepts the lease, and that none of them changes anything."""
    before = progress(connection)
    for which in (None, message):
        with refused("SK003", "has ended"):
            call(connection, "ack", lease=lease, id=which)
        with refused("SK003", "has ended"):
            call(connection, "fail", lease=lease, error="late", id=which)
        with refused("SK003", "has ended"):
            call(connection, "dead_letter", lease=lease, error="late", id=which)
    with refused("SK003", "has ended"):
        call(connection, "release", lease=lease)
    with refused("SK003", "has ended"):
        call(connection, "extend", lease=lease, seconds=60)
    for status in ("completed", "failed", "dead_letter", "release"):
        answers = call(connection, "ack_many", leases=[lease], ids=[message], statuses=[status])
        assert [answer.applied for answer in answers] == [False]
    assert progress(connection) == before


@pytest.mark.parametrize("end", ENDS)
def test_a_stale_token_is_refused(mq: psycopg.Connection, end: Callable[..., None]):
    """C5: however the lease ended, its token changes nothing any more."""
    push(mq, Q, *range(6))
    batch = pop(mq, Q, batch=3)
    say(mq, batch[0], "c")
    end(mq, batch)
    for message in batch:
        assert_refused(mq, message.lease, message.id)


def test_tokens_that_never_were(mq: psycopg.Connection):
    """C5: a made-up token, and none at all."""
    push(mq, Q, 0)
    message = pop(mq, Q)[0]
    assert_refused(mq, uuid.uuid4(), message.id)
    assert_refused(mq, None, message.id)


def test_a_takeover_is_unharmed(mq: psycopg.Connection):
    """C5: the one who took over finishes as if the stale consumer had said nothing."""
    configure(mq, Q, retry_delay=0)
    push(mq, Q, *range(4))
    stale = pop(mq, Q, batch=2)
    pass_time(mq, LEASE_SECONDS + 1)
    taken_over = pop(mq, Q, batch=1)
    assert [message.offset for message in taken_over] == [0]
    assert_refused(mq, stale[0].lease, stale[0].id)
    ack(mq, taken_over)
    assert_refused(mq, stale[0].lease, stale[1].id)
    assert runs(mq, Q) == [([1], 2), ([2, 3], 1)]


def test_a_message_outside_the_lease_is_refused(mq: psycopg.Connection):
    """C5: a live token answers for its own messages only; below the cursor nothing happens and it never goes back."""
    push(mq, Q, *range(6))
    push(mq, Q, *range(3), partition="other")
    first = pop(mq, Q, batch=2, partition="Default")
    ack(mq, first)
    held = pop(mq, Q, batch=2, partition="Default")
    other = pop(mq, Q, batch=2, partition="other")
    address = {"partition_id": held[0].partition_id}
    later = mq.execute("SELECT skep.message_id(%(partition_id)s, 4)", address).fetchone()
    assert later
    before = progress(mq)
    for stranger in (first[0].id, first[1].id, later[0], other[0].id, uuid.uuid4()):
        for status in ("completed", "failed", "dead_letter", "release"):
            answers = call(mq, "ack_many", leases=[held[0].lease], ids=[stranger], statuses=[status])
            assert [answer.applied for answer in answers] == [False]
    assert progress(mq) == before
    assert lag(mq) == {"Default": 4, "other": 3}


def test_one_stale_answer_does_not_touch_the_others(mq: psycopg.Connection):
    """C5: in one call each answer is judged alone."""
    push(mq, Q, *range(3), partition="a")
    push(mq, Q, *range(3), partition="b")
    stale = pop(mq, Q, partition="a")
    call(mq, "release", lease=stale[0].lease)
    live = pop(mq, Q, partition="b")
    mixed = [stale[0], live[0], stale[1], live[1], live[2]]
    answers = call(
        mq, "ack_many",
        leases=[message.lease for message in mixed], ids=[message.id for message in mixed], statuses=["completed"] * 5,
    )  # fmt: skip
    assert [(answer.ord, answer.applied) for answer in answers] == [
        (1, False), (2, True), (3, False), (4, True), (5, True),
    ]  # fmt: skip
    assert lag(mq) == {"a": 3, "b": 0}


def test_an_unknown_status_is_refused(mq: psycopg.Connection):
    """C5: a wrong word changes nothing, not even beside a right one."""
    push(mq, Q, 0, 1)
    batch = pop(mq, Q)
    before = progress(mq)
    for status in ("done", "", None):
        with refused("SK001", "item 1", "status"):
            call(
                mq,
                "ack_many",
                leases=[message.lease for message in batch],
                ids=[message.id for message in batch],
                statuses=["completed", status],
            )
    assert progress(mq) == before


@pytest.mark.parametrize("answer", [one_by_one, as_batch])
def test_ack_twice_is_harmless(mq: psycopg.Connection, answer: Callable[..., None]):
    """C5: within the lease it is accepted, afterwards refused; nothing is counted twice."""
    push(mq, Q, *range(4))
    batch = pop(mq, Q, batch=3)
    answer(mq, batch[:2], "cc")
    before = progress(mq)
    answer(mq, batch[:2], "cc")
    assert progress(mq) == before
    answer(mq, batch[2:], "c")
    assert_refused(mq, batch[0].lease, batch[2].id)
    assert lag(mq) == {"Default": 1}


def test_a_lease_is_exclusive(mq: psycopg.Connection):
    """C8: the lane is the holder's until the lease ends; asking for it by name does not help."""
    push(mq, Q, *range(10))
    held = pop(mq, Q, batch=2)
    assert pop(mq, Q) == []
    assert pop(mq, Q, partition="Default") == []
    ack(mq, held)
    assert [message.offset for message in pop(mq, Q, batch=1)] == [2]


def test_groups_hold_their_own_leases(mq: psycopg.Connection):
    """C8: one group's lease is nothing to another."""
    push(mq, Q, *range(3))
    batches = [pop(mq, Q, group) for group in ("a", "b", "__QUEUE_MODE__")]
    assert [[message.offset for message in batch] for batch in batches] == [[0, 1, 2]] * 3
    assert len({batch[0].lease for batch in batches}) == 3
    ack(mq, batches[0])
    assert [lag(mq, group)["Default"] for group in ("a", "b", "__QUEUE_MODE__")] == [0, 3, 3]


def test_extend_keeps_the_lease(mq: psycopg.Connection):
    """An extended lease outlives its first deadline, and ends at the second."""
    configure(mq, Q, lease_time=10)
    push(mq, Q, *range(2))
    batch = pop(mq, Q)
    deadline = call(mq, "extend", lease=batch[0].lease, seconds=60)[0].extend
    assert (deadline - batch[0].lease_expires_at).total_seconds() == pytest.approx(50, abs=2)
    pass_time(mq, 30)
    assert pop(mq, Q) == []
    say(mq, batch[0], "c")
    pass_time(mq, 40)
    assert_refused(mq, batch[0].lease, batch[1].id)
    assert runs(mq, Q) == [([1], 2)]


def test_extend_never_shortens(mq: psycopg.Connection):
    push(mq, Q, 0)
    message = pop(mq, Q)[0]
    assert call(mq, "extend", lease=message.lease, seconds=1)[0].extend == message.lease_expires_at
    assert broken(mq) == {}


def test_extend_all_leases_of_a_pop(mq: psycopg.Connection):
    configure(mq, Q, lease_time=10)
    for lane in "abc":
        push(mq, Q, 0, partition=lane)
    batch = pop(mq, Q, partitions=3)
    call(mq, "extend_all", leases=[message.lease for message in batch], seconds=100)
    pass_time(mq, 50)
    assert pop(mq, Q) == []
    call(mq, "ack_all", leases=[message.lease for message in batch])
    assert lag(mq) == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize("seconds", [0, -1, None, 604_801])
def test_extend_by_nonsense_is_refused(mq: psycopg.Connection, seconds: float | None):
    push(mq, Q, 0)
    with refused("SK001", "seconds must be between"):
        call(mq, "extend", lease=pop(mq, Q)[0].lease, seconds=seconds)


def test_lease_time_of_the_pop_comes_before_that_of_the_queue(mq: psycopg.Connection):
    configure(mq, Q, lease_time=1000)
    push(mq, Q, 0)
    pop(mq, Q, lease_time=5)
    assert pop(mq, Q) == []
    pass_time(mq, 6)
    second = pop(mq, Q)
    assert [message.attempt for message in second] == [2]
    pass_time(mq, 900)
    assert pop(mq, Q) == []
    pass_time(mq, 200)
    assert [message.attempt for message in pop(mq, Q)] == [3]


def test_ids_of_groups_are_used_again(mq: psycopg.Connection):
    """A lease id has room for 2^21 of them."""
    push(mq, "q", 1)
    kept = pop(mq, "q", group="kept")
    last = "SELECT setval(pg_get_serial_sequence('skep.group_queues', 'id'), 2097150)"
    mq.execute(last)
    leases = [pop(mq, "q", group=name) for name in ("a", "b")]  # the last id, and the first that is free
    assert [len(got) for got in leases] == [1, 1]
    ids = dict(mq.execute("SELECT group_name, id FROM skep.group_queues").fetchall())
    assert (ids["a"], ids["b"] < 2097151, len(set(ids.values()))) == (2097151, True, len(ids))
    for (message,) in (kept, *leases):
        mq.execute("SELECT skep.ack(%s)", [message.lease])
    assert [pop(mq, "q", group=name) for name in ("kept", "a", "b")] == [[], [], []]
