"""Retention deletes exactly what the rules allow, and records exactly what a group missed."""

from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.engine.verbs import ack, broken, call, configure, drain, lag, pass_time, pop, push, push_to, refused, take

Q = "orders"
AT_ONCE = {"completed_retention_seconds": 0}
HOUR = 3600
WEEK = 7 * 24 * HOUR


def kept(mq: psycopg.Connection, queue: str = Q, partition: str = "Default") -> list[int]:
    query = """
        SELECT m."offset" FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id
        JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = %s AND p.name = %s ORDER BY 1
    """
    return [offset for (offset,) in mq.execute(query, [queue, partition]).fetchall()]


def retain(mq: psycopg.Connection, **options: Any) -> list[tuple[str, int, int, int]]:
    """Run retention once; return (rule, first deleted, after the last deleted, missed) for each partition."""
    return [(row.rule, row.first_offset, row.end_offset, row.missed) for row in call(mq, "retain", **options)]


def missed(mq: psycopg.Connection) -> dict[str, int]:
    return dict(mq.execute("SELECT group_name, sum(messages)::int FROM skep.missed_messages GROUP BY 1").fetchall())


def processed(mq: psycopg.Connection) -> dict[str, int]:
    """Return how many messages each group has processed: those below its cursor that it did not skip."""
    query = """
        SELECT g.group_name, sum(c.cursor - c.start_offset - c.skipped)::int
        FROM skep.partition_consumers c JOIN skep.group_queues g ON g.id = c.group_queue_id GROUP BY 1
    """
    return dict(mq.execute(query).fetchall())


def fall_silent(mq: psycopg.Connection, group: str) -> None:
    """Let a group be declared dead."""
    query = "UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day' WHERE group_name = %s"
    mq.execute(query, [group])
    assert [row.group_name for row in call(mq, "detect_dead_groups") if row.died] == [group]


def subscribe(mq: psycopg.Connection, *groups: str, **options: Any) -> None:
    for group in groups:
        call(mq, "subscribe", group_name=group, queue=Q, **options)


def test_nothing_is_deleted_unless_asked(mq: psycopg.Connection):
    """No option, no deletion (scenario 81)."""
    push(mq, Q, *range(3))
    drain(mq, Q)
    pass_time(mq, 365 * 24 * HOUR)
    assert retain(mq) == []
    assert kept(mq) == [0, 1, 2]


def test_finished_and_past_retention(mq: psycopg.Connection):
    """Messages are deleted when all groups completed them long enough ago.

    A dry run counts the same (scenarios 31, 81).
    """
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
    assert retain(mq) == []
    pass_time(mq, HOUR + 1)
    assert retain(mq) == [("completed_retention_seconds", 2, 5, 0)]
    assert lag(mq, "a") == lag(mq, "b") == {"Default": 0}
    assert broken(mq) == {}


def test_retention_counts_from_completion(mq: psycopg.Connection):
    """A message that was pushed long ago is kept for its whole time after the last group has completed it."""
    configure(mq, Q, completed_retention_seconds=HOUR)
    subscribe(mq, "a", "b")
    push(mq, Q, *range(3))
    drain(mq, Q, "a")
    pass_time(mq, 24 * HOUR)
    assert retain(mq) == []
    drain(mq, Q, "b")
    for _ in range(8):
        assert retain(mq) == []
        pass_time(mq, HOUR / 8)
    pass_time(mq, 1)
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


def join_late(mq: psycopg.Connection) -> None:
    subscribe(mq, "late", mode="all")
    drain(mq, Q, "late")


def read_again(mq: psycopg.Connection) -> None:
    call(mq, "seek", group_name="g", queue=Q, position="2")
    drain(mq, Q, "g")


def join_from_now(mq: psycopg.Connection) -> None:
    subscribe(mq, "late", mode="new")


def skip_to_the_end(mq: psycopg.Connection) -> None:
    call(mq, "seek", group_name="g", queue=Q, position="end")


@pytest.mark.parametrize(
    ("change", "old"), [(join_late, []), (read_again, [0, 1]), (join_from_now, range(4)), (skip_to_the_end, range(4))]
)
def test_a_group_that_joins_or_seeks_after_a_sample_completes_later(
    mq: psycopg.Connection, change: Callable[..., None], old: list[int]
):
    """A group that joins or goes back completes messages later than the others, even if no visit saw it behind."""
    configure(mq, Q, completed_retention_seconds=HOUR)
    push(mq, Q, *range(4))
    drain(mq, Q, "g")
    assert retain(mq) == []
    pass_time(mq, HOUR + 1)
    change(mq)
    retain(mq)
    assert kept(mq) == [offset for offset in range(4) if offset not in old]
    pass_time(mq, HOUR * 9 / 8 + 1)
    retain(mq)
    pass_time(mq, HOUR + 1)
    retain(mq)
    assert kept(mq) == []
    assert missed(mq) == {}


def test_samples_are_few(mq: psycopg.Connection):
    """However long a group holds retention back; samples of deleted messages are deleted."""
    configure(mq, Q, completed_retention_seconds=HOUR, retain_until_archived=True)
    partition = push(mq, Q, 0)[0].partition_id
    for number in range(1, 40):
        drain(mq, Q)
        retain(mq)
        pass_time(mq, HOUR / 10)
        push(mq, Q, number)
    query = "SELECT completed_offsets, completed_times FROM skep.partition_floors"
    ((offsets, times),) = mq.execute(query).fetchall()
    assert 5 <= len(offsets) == len(times) <= 10
    assert (offsets, times) == (sorted(set(offsets)), sorted(times))
    drain(mq, Q)
    call(mq, "_mark_archived", partition_id=partition, end_offset=100)
    retain(mq)
    pass_time(mq, HOUR + 1)
    retain(mq)
    pass_time(mq, HOUR + 1)
    retain(mq)
    assert (kept(mq), mq.execute(query).fetchall()) == ([], [(None, None)])


def test_messages_without_subscribers_have_their_own_retention(mq: psycopg.Connection):
    """They have no pending group, and are kept for their own time (scenarios 3, 82)."""
    configure(mq, Q, **AT_ONCE, zero_subscriber_retention_seconds=HOUR)
    push(mq, Q, 0)
    assert retain(mq) == []
    pass_time(mq, HOUR + 1)
    assert retain(mq) == [("zero_subscriber_retention_seconds", 0, 1, 0)]


def test_a_group_that_has_not_popped_yet_is_pending_from_its_start(mq: psycopg.Connection):
    """A missing cursor means the subscription's start, not an empty backlog."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    subscribe(mq, "late")
    drain(mq, Q, "early")
    assert retain(mq) == []
    assert len(drain(mq, Q, "late")) == 3
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


def test_from_now_does_not_hold_the_past(mq: psycopg.Connection):
    """A group that subscribes from now does not change the pending groups of older messages (scenario 5)."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    pass_time(mq, 60)
    drain(mq, Q, "early")
    subscribe(mq, "new", mode="new")
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


@pytest.mark.parametrize(("backfill", "leased"), [(True, [0, 1, 2]), (False, [])])
def test_backfill(mq: psycopg.Connection, *, backfill: bool, leased: list[int]):
    """With backfill the group is pending for the history from the moment of joining.

    Without it reads what is left (scenarios 65, 71).
    """
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    drain(mq, Q, "early")
    subscribe(mq, "late", mode="all", backfill=backfill)
    retain(mq)
    assert kept(mq) == leased
    assert missed(mq) == {}
    push(mq, Q, "after")
    drain(mq, Q, "early")
    retain(mq)
    assert [row.offset for row in drain(mq, Q, "late")] == [*leased, 3]
    assert broken(mq) == {}


@pytest.mark.parametrize(("rule", "option"), [("retention_seconds", HOUR), ("max_size", 2)])
def test_a_hard_limit_counts_what_is_missed(mq: psycopg.Connection, rule: str, option: int):
    """It deletes messages of pending groups; the exact number that each group missed is recorded (scenario 89)."""
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
    assert missed(mq) == {"idle": 5, "gaps": 3}  # 3 was deleted by hand; gaps had not completed 1, 4 and 5
    assert retain(mq) == []
    assert lag(mq, "idle") == lag(mq, "gaps") == {"Default": 2}
    assert [row.offset for row in drain(mq, Q, "gaps")] == [6, 7]
    assert [row.offset for row in drain(mq, Q, "idle")] == [6, 7]
    assert processed(mq) == {"fast": 8, "gaps": 4, "idle": 2}  # without missed messages
    assert broken(mq) == {}


def test_a_run_that_is_cut_in_two(mq: psycopg.Connection):
    """The part of a returned run that is kept is delivered again, with its attempt."""
    configure(mq, Q, max_size=2, retry_delay=0)
    push(mq, Q, *range(4))
    call(mq, "fail", lease=pop(mq, Q, "g", batch=4)[0].lease, error="x")
    assert retain(mq) == [("max_size", 0, 2, 2)]
    assert [(row.offset, row.attempt) for row in drain(mq, Q, "g")] == [(2, 2), (3, 2)]
    assert broken(mq) == {}


def test_a_leased_message_is_never_deleted(mq: psycopg.Connection):
    configure(mq, Q, retention_seconds=HOUR)
    push(mq, Q, *range(4))
    take(mq, Q, "g", batch=1)
    batch = pop(mq, Q, "g", batch=2, lease_time=2 * HOUR)
    subscribe(mq, "idle")
    mq.execute("UPDATE skep.messages SET created_at = created_at - interval '2 hours'")
    assert retain(mq, dry_run=True) == retain(mq) == [("retention_seconds", 0, 1, 1)]
    assert kept(mq) == [1, 2, 3]
    ack(mq, batch)
    assert retain(mq) == [("retention_seconds", 1, 4, 4)]
    assert missed(mq) == {"idle": 4, "g": 1}
    assert broken(mq) == {}


def test_idle_partitions_hold_nothing_back(mq: psycopg.Connection):
    """A partition that no group reads does not affect another (scenario 95)."""
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
def test_the_status_of_a_group_decides_whether_messages_wait_for_it(
    mq: psycopg.Connection, end: str, expected: list[int]
):
    """A paused group keeps its backlog.

    No message waits for a cancelled group, or a dead one without grace (scenarios 18, 57, 58).
    """
    configure(mq, Q, **AT_ONCE, dead_group_grace_seconds=0)
    subscribe(mq, "other", "g")
    push(mq, Q, *range(3))
    drain(mq, Q, "other")
    if end == "die":
        fall_silent(mq, "g")
    else:
        call(mq, end, group_name="g", queue=Q)
    retain(mq)
    assert kept(mq) == expected
    assert missed(mq) == ({"g": 3} if end == "die" else {})


@pytest.mark.parametrize(("grace", "options"), [(WEEK, {}), (HOUR, {"dead_group_grace_seconds": HOUR})])
@pytest.mark.parametrize("known", [True, False])
def test_a_dead_group_keeps_its_backlog_for_a_while(
    mq: psycopg.Connection, grace: int, options: dict[str, int], *, known: bool
):
    """An outage over a weekend loses nothing.

    After the grace period retention continues, and counts missed messages.
    """
    configure(mq, Q, **AT_ONCE, **options)
    subscribe(mq, "other", "g")
    push(mq, Q, *range(3))
    drain(mq, Q, "other")
    assert take(mq, Q, "g", batch=1) == [0] if known else True
    fall_silent(mq, "g")
    pass_time(mq, grace - 10)
    assert retain(mq) == ([("completed_retention_seconds", 0, 1, 0)] if known else [])
    pass_time(mq, 11)
    assert retain(mq) == [("completed_retention_seconds", known, 3, 3 - known)]
    assert missed(mq) == {"g": 3 - known}
    assert drain(mq, Q, "g") == []
    assert broken(mq) == {}


def test_a_revived_group_continues_with_what_is_left(mq: psycopg.Connection):
    """It continues at its cursor, without what it had completed, and retention waits for it again.

    Scenarios 63, 88.
    """
    configure(mq, Q, **AT_ONCE, dead_group_grace_seconds=0)
    subscribe(mq, "other", "g")
    push(mq, Q, *range(4))
    take(mq, Q, "g", batch=2)
    take(mq, Q, "other", batch=3)
    fall_silent(mq, "g")
    retain(mq)
    assert kept(mq) == [3]
    assert missed(mq) == {"g": 1}
    call(mq, "heartbeat", group_name="g", queue=Q)
    drain(mq, Q, "other")
    assert retain(mq) == []
    assert [row.offset for row in drain(mq, Q, "g")] == [3]
    assert broken(mq) == {}


def test_messages_of_a_work_queue_wait_for_the_first_consumer(mq: psycopg.Connection):
    """Subscriptions of other groups do not change that (scenario 2)."""
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


def test_the_limit_of_a_call_is_shared(mq: psycopg.Connection):
    """max_messages is the total of a call: small partitions are done, large ones get equal shares of the rest."""
    configure(mq, Q, max_size=1)
    push_to(mq, [(Q, "small", n) for n in range(3)] + [(Q, f"large {n % 4}", n) for n in range(400)])
    deleted = {row.partition: row.end_offset - row.first_offset for row in call(mq, "retain", max_messages=102)}
    assert deleted == {"small": 2} | {f"large {n}": 25 for n in range(4)}
    total = sum(deleted.values())
    while step := sum(end - first for _, first, end, _ in retain(mq, max_messages=102)):
        assert step <= 102
        total += step
    assert total == 2 + 4 * 99
    assert broken(mq) == {}


@pytest.mark.timeout(300)
def test_more_partitions_than_there_are_locks(mq: psycopg.Connection):
    """25,001 partitions in one call: rows are locked, and any number of rows can be."""
    configure(mq, Q, max_size=1)
    for _ in range(2):
        push_to(mq, [(Q, str(n), n) for n in range(25_001)])
    assert len(retain(mq, max_messages=30_000)) == 25_001
    assert retain(mq) == []


def test_retention_waits_for_the_archive(mq: psycopg.Connection):
    configure(mq, Q, **AT_ONCE, retain_until_archived=True)
    partition = push(mq, Q, *range(4))[0].partition_id
    drain(mq, Q)
    assert retain(mq) == []
    call(mq, "_mark_archived", partition_id=partition, end_offset=3)
    call(mq, "_mark_archived", partition_id=partition, end_offset=1)  # never goes back
    assert retain(mq) == [("completed_retention_seconds", 0, 3, 0)]


def test_idle_partitions_are_dropped(mq: psycopg.Connection):
    """A push creates the partition again."""
    configure(mq, Q, **AT_ONCE, drop_idle_seconds=HOUR)
    push(mq, Q, 0, partition="done")
    push(mq, Q, 0, partition="pending")
    for row in pop(mq, Q, partition="done"):
        ack(mq, [row])
    retain(mq)
    assert call(mq, "drop_idle_partitions")[0].drop_idle_partitions == 0
    pass_time(mq, HOUR + 1)
    assert call(mq, "drop_idle_partitions")[0].drop_idle_partitions == 1
    assert [row.offset for row in push(mq, Q, 1, partition="done")] == [0]
    assert sorted(row.partition for row in drain(mq, Q)) == ["done", "pending"]
    assert broken(mq) == {}


STARTS: dict[str, dict[str, Any]] = {
    "all": {"mode": "all"},
    "new": {"mode": "new"},
    "offset": {"start_from": "2"},
    "offset of the partition": {"start_from": "2", "partition": "done"},
    "timestamp": {"start_from": "2020-01-01"},
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("moved", [False, True])
def test_no_group_skips_messages_of_a_partition_that_is_created_again(
    mq: psycopg.Connection, start: str, *, moved: bool
):
    """A push creates it again at offset 0: a subscription or a seek referred to the deleted one."""
    configure(mq, Q, **AT_ONCE, drop_idle_seconds=HOUR)
    push(mq, Q, *range(5), partition="done")
    subscribe(mq, "g", **STARTS[start])
    if moved:
        call(mq, "seek", group_name="g", queue=Q, position="3", partition=STARTS[start].get("partition"))
    drain(mq, Q, "g")
    retain(mq)
    assert kept(mq, partition="done") == []
    pass_time(mq, HOUR + 1)
    assert call(mq, "drop_idle_partitions")[0].drop_idle_partitions == 1
    before = processed(mq)
    push(mq, Q, "again", partition="done")
    assert [(row.offset, row.payload) for row in drain(mq, Q, "g")] == [(0, "again")]
    assert (before, processed(mq)) == ({}, {"g": 1})
    assert broken(mq) == {}


def test_two_retentions_at_once(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """The second finds the partition locked, or nothing to do; missed messages are counted once (scenario 84)."""
    configure(mq, Q, max_size=1)
    subscribe(mq, "idle")
    push(mq, Q, *range(5))
    other = connect_module()
    with mq.transaction():
        assert retain(mq) == [("max_size", 0, 4, 4)]
        assert retain(other) == []
    assert retain(other) == []
    assert missed(mq) == {"idle": 4}


def test_a_killed_retention(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """A retention that is rolled back, or killed, has deleted nothing."""
    configure(mq, Q, **AT_ONCE)
    push(mq, Q, *range(3))
    drain(mq, Q)
    other = connect_module()
    with other.transaction(force_rollback=True):
        assert retain(other) == [("completed_retention_seconds", 0, 3, 0)]
    assert kept(mq) == [0, 1, 2]
    assert broken(mq) == {}


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("retain", {}), ("drop_idle_partitions", {}), ("clear_queue", {"queue": Q}), ("delete_queue", {"queue": Q}),
        ("delete_partition", {"queue": Q, "partition": "p"}),
    ],
)  # fmt: skip
def test_a_retention_with_an_old_snapshot_deletes_nothing(
    mq: psycopg.Connection, level: IsolationLevel, function: str, arguments: dict[str, str]
):
    """The snapshot does not show groups that have subscribed since."""
    mq.isolation_level = level
    with mq.transaction(force_rollback=True), refused("SK001", function, "READ COMMITTED"):
        call(mq, function, **arguments)
    mq.isolation_level = None


def fail_all(mq: psycopg.Connection, batch: list[Any]) -> None:
    call(mq, "fail", lease=batch[0].lease, error="x")


def test_a_shared_partition(mq: psycopg.Connection):
    """Leases and returned runs lie anywhere: the lowest lease is the limit, returned runs below the cut are missed."""
    configure(mq, Q, max_size=1, concurrency=4, retry_delay=0)
    push(mq, Q, *range(12))
    first, second, third = (pop(mq, Q, "g", batch=2) for _ in range(3))
    fail_all(mq, first)
    ack(mq, second)
    assert [row.offset for row in third] == [4, 5]
    assert retain(mq) == [("max_size", 0, 4, 2)]
    assert retain(mq) == []
    ack(mq, third)
    assert retain(mq) == [("max_size", 4, 11, 5)]
    assert missed(mq) == {"g": 7}
    assert processed(mq) == {"g": 4}
    assert [row.offset for row in drain(mq, Q)] == [11]
    assert broken(mq) == {}


def test_a_returned_run_of_a_shared_partition_is_cut(mq: psycopg.Connection):
    configure(mq, Q, max_size=3, concurrency=4, retry_delay=0)
    push(mq, Q, *range(6))
    fail_all(mq, pop(mq, Q, "g", batch=4))
    assert retain(mq) == [("max_size", 0, 3, 3)]
    assert sorted((row.offset, row.attempt) for row in drain(mq, Q)) == [(3, 2), (4, 1), (5, 1)]
    assert broken(mq) == {}


def test_a_message_that_waited_for_its_retry_is_deleted(mq: psycopg.Connection):
    """The messages behind it do not wait for the retry."""
    configure(mq, Q, max_size=2, retry_delay=HOUR)
    push(mq, Q, *range(4))
    fail_all(mq, pop(mq, Q, "g", batch=2))
    assert pop(mq, Q, "g") == []
    assert retain(mq) == [("max_size", 0, 2, 2)]
    assert take(mq, Q, "g") == [2, 3]


def test_clearing_a_queue(mq: psycopg.Connection):
    """Leased, returned and unread messages are deleted and not counted as processed; groups continue after them."""
    for queue, concurrency in ((Q, 1), ("shared", 4)):
        configure(mq, queue, concurrency=concurrency, retry_delay=0, partial_failure="retry")
        push(mq, queue, *range(10))
        take(mq, queue, "g", batch=2)
        fail_all(mq, pop(mq, queue, "g", batch=2))
        batch = pop(mq, queue, "g", batch=2)
        call(mq, "ack", lease=batch[0].lease, id=batch[0].id)
        call(mq, "subscribe", group_name="unread", queue=queue)
        before = broken(mq)
        assert call(mq, "clear_queue", queue=queue)[0].clear_queue == 10
        with refused("SK003"):
            ack(mq, batch)
        push(mq, queue, "later")
        assert [drain(mq, queue, group)[0].offset for group in ("g", "unread")] == [10, 10]
        assert (before, broken(mq)) == ({}, {})
    assert processed(mq) == {"g": 8, "unread": 2}
    assert missed(mq) == {}


TABLES: list[LiteralString] = [
    "partitions", "partition_floors", "messages", "journal", "group_queues", "starts", "runs", "discoveries",
    "subscriptions", "lease_log",
]  # fmt: skip


def count(mq: psycopg.Connection, table: LiteralString) -> int:
    return mq.execute(f"SELECT count(*) FROM skep.{table}").fetchall()[0][0]


def test_nothing_stays_of_a_queue(mq: psycopg.Connection):
    """No row of a deleted queue is left, also in the tables of discovery; rows of other queues stay."""
    for queue in (Q, "other"):
        push(mq, queue, *range(3))
        configure(mq, queue, concurrency=3, lease_log_seconds=HOUR)
        ack(mq, pop(mq, queue, "g", batch=1))
        pop(mq, queue, "h", batch=1)
    before = [count(mq, table) for table in TABLES]
    assert call(mq, "delete_queue", queue=Q)[0].delete_queue
    assert [2 * count(mq, table) for table in TABLES] == before
    assert sorted(row.payload for row in drain(mq, "other")) == [1, 2]
    assert broken(mq) == {}
