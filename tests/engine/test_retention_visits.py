"""Upkeep visits all partitions that have something to delete, and few others."""

from collections.abc import Callable

import psycopg
import pytest

from tests.engine.verbs import ack, call, configure, pass_time, pop, push, push_to, take

Q = "q"
HOUR = 3600


def due(mq: psycopg.Connection) -> set[int]:
    return set(call(mq, "_partitions_due")[0].due)


def idle(mq: psycopg.Connection) -> set[int]:
    return set(call(mq, "_partitions_due")[0].idle)


def deletable(mq: psycopg.Connection) -> set[int]:
    """Return the partitions in which retention would delete something, checked one by one."""
    return {row.partition_id for row in call(mq, "retain", dry_run=True)}


def partitions(mq: psycopg.Connection) -> list[int]:
    return [row[0] for row in mq.execute("SELECT id FROM skep.partitions ORDER BY id").fetchall()]


def drained(mq: psycopg.Connection, number: int, *groups: str) -> None:
    push_to(mq, [(Q, f"p{n}", n) for n in range(number)])
    for group in groups:
        assert len(take(mq, Q, group, partitions=10_000, batch=10_000)) == number


def test_partitions_with_nothing_to_delete_are_not_visited(mq: psycopg.Connection):
    configure(mq, Q, retention_seconds=HOUR, completed_retention_seconds=HOUR)
    drained(mq, 20, "a", "b")
    assert due(mq) == set(partitions(mq)), "they have to be known as completed first"
    call(mq, "retain")
    assert [due(mq) for _ in range(3)] == [set()] * 3


def test_messages_age_without_a_push(mq: psycopg.Connection):
    configure(mq, Q, retention_seconds=HOUR)
    drained(mq, 3)
    due(mq)
    assert due(mq) == set()
    pass_time(mq, HOUR + 1)
    assert due(mq) == deletable(mq) == set(partitions(mq))


def test_completed_messages_age_without_a_push(mq: psycopg.Connection):
    configure(mq, Q, completed_retention_seconds=HOUR)
    drained(mq, 3, "a")
    call(mq, "retain", partition_ids=sorted(due(mq)))
    pass_time(mq, HOUR - 60)
    assert due(mq) == deletable(mq) == set()
    pass_time(mq, 61)
    assert due(mq) == deletable(mq) == set(partitions(mq))


def test_an_ack_without_a_push(mq: psycopg.Connection):
    configure(mq, Q, completed_retention_seconds=0)
    drained(mq, 3, "a")
    leased = pop(mq, Q, "b", partitions=3, batch=3)
    assert [due(mq) for _ in range(2)] == [set()] * 2
    ack(mq, leased)
    assert due(mq) == deletable(mq) == set(partitions(mq))


def test_a_group_that_lags_behind(mq: psycopg.Connection):
    """Partitions that wait for a group are not visited until its cursor moves."""
    configure(mq, Q, completed_retention_seconds=HOUR)
    drained(mq, 5, "a")
    pop(mq, Q, "slow", partitions=5, batch=5)
    due(mq)
    assert due(mq) == set()


@pytest.mark.parametrize("end", ["cancel", "detect_dead_groups"])
def test_cancelled_and_dead_groups_do_not_count(mq: psycopg.Connection, end: str):
    configure(mq, Q, completed_retention_seconds=0, dead_group_grace_seconds=0)
    drained(mq, 3, "a")
    pop(mq, Q, "gone", partitions=3, batch=3, lease_time=1)
    due(mq)
    assert deletable(mq) == set()
    if end == "cancel":
        call(mq, "cancel", group_name="gone", queue=Q)
    pass_time(mq, HOUR)
    call(mq, "heartbeat", group_name="a", queue=Q)
    call(mq, "detect_dead_groups")
    mq.execute("SELECT skep.expire_leases()")
    assert due(mq) == deletable(mq) == set(partitions(mq))


def test_no_subscriber(mq: psycopg.Connection):
    configure(mq, Q, zero_subscriber_retention_seconds=HOUR)
    push_to(mq, [(Q, "a", 1), (Q, "b", 2)])
    due(mq)
    assert due(mq) == set()
    pass_time(mq, HOUR + 1)
    assert due(mq) == deletable(mq) == set(partitions(mq))


def test_too_many_messages(mq: psycopg.Connection):
    configure(mq, Q, max_size=2)
    push(mq, Q, 1, 2, partition="a")
    push(mq, Q, 1, 2, 3, partition="b")
    assert due(mq) >= deletable(mq)
    assert due(mq) == deletable(mq) == {partitions(mq)[1]}


def test_partitions_with_pushes_are_visited_first(mq: psycopg.Connection):
    """The next call visits a partition with a push, wherever the scan through all partitions is."""
    configure(mq, Q, max_size=1)
    push_to(mq, [(Q, f"p{n}", n) for n in range(6_000)])
    due(mq)
    visited = mq.execute("SELECT visited_to FROM skep.retention_visits").fetchone()
    assert visited == (partitions(mq)[4_999],), "5,000 are looked at in one call"
    push(mq, Q, "second", partition="p0")
    assert due(mq) == deletable(mq) == {partitions(mq)[0]}


def test_calls_continue_the_scan(mq: psycopg.Connection, connect_module: Callable[..., psycopg.Connection]):
    """A call continues where the one before stopped, and starts again after the last partition."""
    configure(mq, Q, retention_seconds=HOUR)
    push_to(mq, [(Q, f"p{n}", n) for n in range(2_500)])
    due(mq)
    pass_time(mq, HOUR + 1)
    found = [due(mq) for _ in range(3)]
    assert [len(each) for each in found] == [1_000, 1_000, 500]
    assert set.union(*found) == set(partitions(mq))
    assert due(mq) == found[0]
    with connect_module() as other, other.transaction():
        call(other, "_partitions_due")
        assert due(mq) == set(), "another call is under way"


def test_idle_partitions(mq: psycopg.Connection):
    configure(mq, Q, drop_idle_seconds=HOUR, completed_retention_seconds=0)
    drained(mq, 3, "a")
    push(mq, Q, "kept", partition="p0")
    call(mq, "retain", partition_ids=sorted(due(mq)))
    assert idle(mq) == set()
    pass_time(mq, HOUR + 1)
    assert idle(mq) == set(partitions(mq)[1:])
    assert call(mq, "drop_idle_partitions", partition_ids=partitions(mq)[:2])[0][0] == 1
    assert call(mq, "drop_idle_partitions")[0][0] == 1


def test_queues_without_rules_cost_nothing(mq: psycopg.Connection):
    push_to(mq, [("other", f"p{n}", n) for n in range(50)])
    pass_time(mq, 10 * 365 * 24 * HOUR)
    assert due(mq) == idle(mq) == set()
    configure(mq, Q, retention_seconds=HOUR)
    push(mq, Q, 1)
    pass_time(mq, HOUR + 1)
    assert due(mq) == deletable(mq) == {partitions(mq)[-1]}
