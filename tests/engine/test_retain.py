"""Retention: deletes exactly what the rules allow, and says exactly what a group missed."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import ack, broken, call, configure, drain, lag, pass_time, pop, push, take

Q = "orders"
AT_ONCE = {"completed_retention_seconds": 0}
HOUR = 3600


def kept(mq: psycopg.Connection, queue: str = Q, partition: str = "Default") -> list[int]:
    query = """
        SELECT m."offset" FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id
        JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = %s AND p.name = %s ORDER BY 1
    """
    return [offset for (offset,) in mq.execute(query, [queue, partition]).fetchall()]


def retain(mq: psycopg.Connection, **options: Any) -> list[tuple[str, int, int, int]]:
    """Run it once; (rule, first deleted, behind the last deleted, missed) for each lane."""
    return [(row.rule, row.first_offset, row.end_offset, row.missed) for row in call(mq, "retain", **options)]


def missed(mq: psycopg.Connection) -> dict[str, int]:
    return dict(mq.execute("SELECT group_name, sum(messages)::int FROM skep.missed GROUP BY 1").fetchall())


def subscribe(mq: psycopg.Connection, *groups: str, **options: Any) -> None:
    for group in groups:
        call(mq, "subscribe", group_name=group, queue=Q, **options)


def test_nothing_is_deleted_unless_asked(mq: psycopg.Connection):
    """81: no option, no deletion."""
    push(mq, Q, *range(3))
    drain(mq, Q)
    pass_time(mq, 365 * 24 * HOUR)
    assert retain(mq) == []
    assert kept(mq) == [0, 1, 2]


def test_finished_and_past_retention(mq: psycopg.Connection):
    """31, 81: finished by all and old enough; counted by a dry run just as deleted."""
    configure(mq, Q, completed_retention_seconds=HOUR)
    subscribe(mq, "a", "b")
    push(mq, Q, *range(4))
    drain(mq, Q, "a")
    take(mq, Q, "b", batch=2)
    assert retain(mq) == []
    pass_time(mq, HOUR + 1)
    push(mq, Q, "young")
    drain(mq, Q, "a")
    expected = [("completed_retention_seconds", 0, 2, 0)]
    assert retain(mq, dry_run=True) == expected
    assert kept(mq) == [0, 1, 2, 3, 4]
    assert retain(mq) == expected
    assert retain(mq) == []
    assert kept(mq) == [2, 3, 4]
    drain(mq, Q, "b")
    assert retain(mq) == [("completed_retention_seconds", 2, 4, 0)]
    assert kept(mq) == [4]
    assert lag(mq, "a") == lag(mq, "b") == {"Default": 0}
    assert broken(mq) == {}


def test_zero_subscribers_have_their_own_retention(mq: psycopg.Connection):
    """3, 82: owed by none, and kept until its own time."""
    configure(mq, Q, **AT_ONCE, zero_subscriber_retention_seconds=HOUR)
    push(mq, Q, 0)
    assert retain(mq) == []
    pass_time(mq, HOUR + 1)
    assert retain(mq) == [("zero_subscriber_retention_seconds", 0, 1, 0)]


def test_a_group_that_has_not_come_yet_is_owed_from_its_start(mq: psycopg.Connection):
    """A missing cursor means the subscription's start, not "nothing owed"."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    subscribe(mq, "late")
    drain(mq, Q, "early")
    assert retain(mq) == []
    assert len(drain(mq, Q, "late")) == 3
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


def test_from_now_does_not_hold_the_past(mq: psycopg.Connection):
    """5: subscribing afterwards from now does not change what older messages are owed to."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    pass_time(mq, 60)
    drain(mq, Q, "early")
    subscribe(mq, "new", mode="new")
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


@pytest.mark.parametrize(("backfill", "held"), [(True, [0, 1, 2]), (False, [])])
def test_backfill(mq: psycopg.Connection, *, backfill: bool, held: list[int]):
    """65, 71: with backfill the history is owed from the moment of joining; without it is read while it lasts."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    drain(mq, Q, "early")
    subscribe(mq, "late", mode="all", backfill=backfill)
    retain(mq)
    assert kept(mq) == held
    assert missed(mq) == {}
    push(mq, Q, "after")
    drain(mq, Q, "early")
    retain(mq)
    assert [row.offset for row in drain(mq, Q, "late")] == [*held, 3]
    assert broken(mq) == {}


@pytest.mark.parametrize(("rule", "option"), [("retention_seconds", HOUR), ("max_size", 2)])
def test_a_hard_limit_counts_what_is_missed(mq: psycopg.Connection, rule: str, option: int):
    """89: owed or not; the exact number each group missed is written down, whatever it had done in between."""
    configure(mq, Q, **{rule: option}, partial_failure="retry", retry_delay=0)
    subscribe(mq, "idle", "fast", "gaps")
    push(mq, Q, *range(6))
    drain(mq, Q, "fast")
    batch = pop(mq, Q, "gaps", batch=4)  # completes 0 and 2, fails 1 and 3
    for message, status in zip(batch, ("ack", "fail", "ack", "fail"), strict=True):
        call(mq, status, lease=message.lease, id=message.id, **({"error": "x"} if status == "fail" else {}))
    call(mq, "delete_message", id=batch[3].id)
    pass_time(mq, HOUR + 1)
    push(mq, Q, 6, 7)
    drain(mq, Q, "fast")
    assert retain(mq, dry_run=True) == [(rule, 0, 6, 8)]
    assert retain(mq) == [(rule, 0, 6, 8)]
    assert missed(mq) == {"idle": 5, "gaps": 3}  # 3 was deleted by hand; gaps had not done 1, 4 and 5
    assert retain(mq) == []
    assert lag(mq, "idle") == lag(mq, "gaps") == {"Default": 2}
    assert [row.offset for row in drain(mq, Q, "gaps")] == [6, 7]
    assert [row.offset for row in drain(mq, Q, "idle")] == [6, 7]
    assert broken(mq) == {}


def test_a_run_that_is_cut_in_two(mq: psycopg.Connection):
    """The part of a returned run that is kept comes again, with its attempt."""
    configure(mq, Q, max_size=2, retry_delay=0)
    push(mq, Q, *range(4))
    call(mq, "fail", lease=pop(mq, Q, "g", batch=4)[0].lease, error="x")
    assert retain(mq) == [("max_size", 0, 2, 2)]
    assert [(row.offset, row.attempt) for row in drain(mq, Q, "g")] == [(2, 2), (3, 2)]
    assert broken(mq) == {}


def test_a_leased_message_is_never_taken(mq: psycopg.Connection):
    configure(mq, Q, retention_seconds=HOUR)
    push(mq, Q, *range(4))
    take(mq, Q, "g", batch=1)
    batch = pop(mq, Q, "g", batch=2, lease_time=2 * HOUR)
    subscribe(mq, "idle")
    mq.execute("UPDATE skep.messages SET created_at = created_at - interval '2 hours'")
    mq.execute("UPDATE skep.partition_lookup SET last_created_at = last_created_at - interval '2 hours'")
    assert retain(mq) == [("retention_seconds", 0, 1, 1)]
    assert kept(mq) == [1, 2, 3]
    ack(mq, batch)
    assert retain(mq) == [("retention_seconds", 1, 4, 4)]
    assert missed(mq) == {"idle": 4, "g": 1}
    assert broken(mq) == {}


def test_idle_lanes_hold_nothing_back(mq: psycopg.Connection):
    """95: another lane that nobody touches has no say."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, 0, partition="idle")
    drain(mq, Q)
    push(mq, Q, *range(3), partition="busy")
    drain(mq, Q)
    retain(mq)
    assert (kept(mq, partition="idle"), kept(mq, partition="busy")) == ([], [])


@pytest.mark.parametrize(
    ("end", "expected"),
    [("pause", [0, 1, 2]), ("cancel", []), ("die", [])],
)
def test_status_decides_what_is_owed(mq: psycopg.Connection, end: str, expected: list[int]):
    """18, 57, 58: paused keeps its debt; dead and cancelled are owed nothing, and release what they held at once."""
    configure(mq, Q, **AT_ONCE)
    subscribe(mq, "other", "g")
    push(mq, Q, *range(3))
    drain(mq, Q, "other")
    if end == "die":
        mq.execute("UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day' WHERE group_name = 'g'")
        call(mq, "detect_dead_groups")
    else:
        call(mq, end, group_name="g", queue=Q)
    retain(mq)
    assert kept(mq) == expected
    assert missed(mq) == ({"g": 3} if end == "die" else {})


def test_the_dead_come_back_to_what_is_left(mq: psycopg.Connection):
    """63, 88: it continues at its cursor, without what it had done, and is owed the rest again."""
    configure(mq, Q, **AT_ONCE)
    subscribe(mq, "other", "g")
    push(mq, Q, *range(4))
    take(mq, Q, "g", batch=2)
    take(mq, Q, "other", batch=3)
    mq.execute("UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day' WHERE group_name = 'g'")
    mq.execute("UPDATE skep.cursors SET last_consumed_at = NULL, touched_at = NULL")
    call(mq, "detect_dead_groups")
    retain(mq)
    assert kept(mq) == [3]
    assert missed(mq) == {"g": 1}
    call(mq, "heartbeat", group_name="g", queue=Q)
    drain(mq, Q, "other")
    assert retain(mq) == []
    assert [row.offset for row in drain(mq, Q, "g")] == [3]
    assert broken(mq) == {}


def test_a_work_queue_is_owed_to_somebody_before_anyone_came(mq: psycopg.Connection):
    """2: whatever groups subscribe."""
    configure(mq, Q, semantics="queue", **AT_ONCE, zero_subscriber_retention_seconds=1)
    push(mq, Q, *range(3))
    subscribe(mq, "a", "b", "c")
    pass_time(mq, HOUR)
    assert retain(mq) == []
    assert take(mq, Q, "a", batch=2) == [0, 1]
    assert retain(mq) == [("completed_retention_seconds", 0, 2, 0)]
    assert take(mq, Q, "b", batch=2) == [2]


def test_small_steps(mq: psycopg.Connection):
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(10))
    drain(mq, Q)
    ends = []
    while rows := retain(mq, max_messages=3):
        ends += [end for _, _, end, _ in rows]
    assert ends == [3, 6, 9, 10]


def test_it_waits_for_the_archive(mq: psycopg.Connection):
    configure(mq, Q, **AT_ONCE, retain_until_archived=True)
    lane = push(mq, Q, *range(4))[0].partition_id
    drain(mq, Q)
    assert retain(mq) == []
    call(mq, "mark_archived", partition_id=lane, end_offset=3)
    call(mq, "mark_archived", partition_id=lane, end_offset=1)  # never goes back
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


def test_idle_partitions_are_dropped(mq: psycopg.Connection):
    """A push makes the lane anew."""
    configure(mq, Q, **AT_ONCE, drop_idle_seconds=HOUR)
    push(mq, Q, 0, partition="done")
    push(mq, Q, 0, partition="owed")
    for row in pop(mq, Q, partition="done"):
        ack(mq, [row])
    retain(mq)
    assert call(mq, "drop_idle_partitions")[0].drop_idle_partitions == 0
    pass_time(mq, HOUR + 1)
    assert call(mq, "drop_idle_partitions")[0].drop_idle_partitions == 1
    assert [row.offset for row in push(mq, Q, 1, partition="done")] == [0]
    assert sorted(row.partition for row in drain(mq, Q)) == ["done", "owed"]
    assert broken(mq) == {}


@pytest.mark.parametrize("partition", [None, "done"])
def test_a_lane_somebody_was_sent_into_is_not_dropped(mq: psycopg.Connection, partition: str | None):
    """It would begin at 0 again, and everything below that offset be skipped."""
    configure(mq, Q, **AT_ONCE, drop_idle_seconds=HOUR)
    push(mq, Q, *range(3), partition="done")
    call(mq, "seek", group_name="g", queue=Q, position="2", partition=partition)
    drain(mq, Q)
    retain(mq)
    pass_time(mq, HOUR + 1)
    assert call(mq, "drop_idle_partitions")[0].drop_idle_partitions == 0
    push(mq, Q, 3, partition="done")
    assert [row.payload for row in drain(mq, Q)] == [3]


def test_two_at_once_change_nothing_twice(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """84: the second finds the lane taken, or nothing left to do; what is missed is counted once."""
    configure(mq, Q, max_size=1)
    subscribe(mq, "idle")
    push(mq, Q, *range(5))
    other = connect_module()
    with mq.transaction():
        assert retain(mq) == [("max_size", 0, 4, 4)]
        assert retain(other) == []
    assert retain(other) == []
    assert missed(mq) == {"idle": 4}


def test_killed_in_the_middle(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """A retention that is rolled back, or killed, has deleted nothing."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    drain(mq, Q)
    other = connect_module()
    with other.transaction(force_rollback=True):
        assert retain(other) == [("completed_retention_seconds", 0, 3, 0)]
    assert kept(mq) == [0, 1, 2]
    assert broken(mq) == {}
