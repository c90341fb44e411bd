"""The log of finished leases: one row for each that ended, of queues that want it, for as long as they want it."""

import psycopg
import pytest

from tests.engine.plans import FREEZE, assert_indexed, explained
from tests.engine.verbs import Row, ack, call, configure, drain, pass_time, pop, push, push_to, take

Q = "orders"


@pytest.fixture
def logged(mq: psycopg.Connection) -> psycopg.Connection:
    configure(mq, Q, lease_log_seconds=3600, retry_delay=0)
    return mq


def log(connection: psycopg.Connection) -> list[Row]:
    """What is in the log, oldest first: reason, run, attempt, what came again."""
    return connection.execute(
        "SELECT reason, first_offset, end_offset, attempt, returned::text FROM skep.lease_log ORDER BY finished_at"
    ).fetchall()


def test_there_is_no_log_unless_a_queue_wants_it(mq: psycopg.Connection):
    push(mq, Q, 1, 2)
    take(mq, Q, batch=1)
    call(mq, "fail", lease=pop(mq, Q)[0].lease, error="no")
    assert log(mq) == []


def test_a_row_has_when_it_was_pushed_leased_and_finished(logged: psycopg.Connection):
    push(logged, Q, 1, partition="a")
    pass_time(logged, 10)
    push(logged, Q, 2, 3, partition="a")
    pass_time(logged, 5)
    deliveries = pop(logged, Q, "g")
    pass_time(logged, 2)
    ack(logged, deliveries)
    ((queue, group, lane, *seconds),) = logged.execute(
        "SELECT q.name, g.group_name, p.name, round(extract(epoch FROM g.finished_at - g.first_pushed_at)),"
        " round(extract(epoch FROM g.finished_at - g.last_pushed_at)),"
        " round(extract(epoch FROM g.finished_at - g.leased_at)) FROM skep.lease_log g"
        " JOIN skep.queues q ON q.id = g.queue_id JOIN skep.partitions p ON p.id = g.partition_id"
    ).fetchall()
    assert (queue, group, lane, seconds) == (Q, "g", "a", [17, 7, 2])
    assert log(logged) == [("completed", 0, 3, 1, "{}")]


def test_every_way_to_end_is_a_row(logged: psycopg.Connection):
    push(logged, Q, *range(4))
    deliveries = pop(logged, Q, batch=2)
    call(logged, "fail", lease=deliveries[0].lease, error="no")  # all failed: it comes again
    deliveries = pop(logged, Q, batch=2)
    call(logged, "ack", lease=deliveries[0].lease, id=deliveries[0].id)
    call(logged, "fail", lease=deliveries[0].lease, error="no", id=deliveries[1].id)  # some failed: a dead letter
    call(logged, "release", lease=pop(logged, Q, batch=2)[0].lease)
    pop(logged, Q, batch=2, lease_time=0.001)
    logged.execute("SELECT pg_sleep(0.01)")
    call(logged, "expire_leases")
    drain(logged, Q, batch=1)
    assert log(logged) == [
        ("failed", 0, 2, 1, "{[0,2)}"),
        ("failed", 0, 2, 2, "{}"),
        ("released", 2, 4, 1, "{[2,4)}"),
        ("expired", 2, 4, 1, "{[2,4)}"),
        ("completed", 2, 3, 2, "{}"),
        ("completed", 3, 4, 2, "{}"),
    ]
    begun = "leased_at > lag(finished_at) OVER (ORDER BY finished_at) AND leased_at < finished_at"
    assert logged.execute(f"SELECT {begun} FROM skep.lease_log ORDER BY finished_at").fetchall()[1:] == [(True,)] * 5


def test_acks_one_by_one_are_one_lease(logged: psycopg.Connection):
    push(logged, Q, 1, 2, 3)
    for delivery in (deliveries := pop(logged, Q)):
        call(logged, "ack", lease=deliveries[0].lease, id=delivery.id)
    assert log(logged) == [("completed", 0, 3, 1, "{}")]


def test_a_lease_of_many_lanes_is_a_row_for_each(logged: psycopg.Connection):
    configure(logged, "other")
    push_to(logged, [(Q, f"lane {n % 3}", n) for n in range(9)])
    push(logged, "other", 1)
    assert len(drain(logged, None, batch=10, partitions=10, namespace=Q)) == 9
    assert len(take(logged, "other")) == 1
    assert log(logged) == [("completed", 0, 3, 1, "{}")] * 3


def test_auto_ack_is_logged_and_what_is_dropped_is_not(logged: psycopg.Connection):
    push(logged, Q, 1, 2)
    pop(logged, Q, batch=1, auto_ack=True)
    pop(logged, Q, batch=1)
    call(logged, "seek", group_name="g", queue=Q, position="end")
    assert log(logged) == [("completed", 0, 1, 1, "{}")]


def test_shared_lanes_keep_their_times_apart(logged: psycopg.Connection):
    configure(logged, Q, concurrency=2)
    push(logged, Q, 1, 2)
    first = pop(logged, Q, batch=1)
    pass_time(logged, 10)
    second = pop(logged, Q, batch=1)
    ack(logged, [*first, *second])
    held = "SELECT round(extract(epoch FROM finished_at - leased_at)) FROM skep.lease_log ORDER BY first_offset"
    assert logged.execute(held).fetchall() == [(10,), (0,)]


def test_each_queue_says_how_long_it_is_kept(logged: psycopg.Connection):
    configure(logged, "short", lease_log_seconds=60)
    for queue in (Q, "short"):
        push(logged, queue, *range(3))
        drain(logged, queue, batch=1)
    assert call(logged, "_prune_lease_log")[0][0] == 0
    pass_time(logged, 120)
    assert call(logged, "_prune_lease_log", max_rows=2)[0][0] == 2
    assert call(logged, "_prune_lease_log")[0][0] == 1
    configure(logged, Q, lease_log_seconds=None)
    assert call(logged, "_prune_lease_log")[0][0] == 3
    assert log(logged) == []


def test_it_goes_with_its_queue(logged: psycopg.Connection):
    push(logged, Q, 1)
    take(logged, Q)
    call(logged, "delete_queue", queue=Q)
    assert log(logged) == []


@pytest.fixture
def long(logged: psycopg.Connection) -> psycopg.Connection:
    """A log that is worth an index."""
    logged.execute(FREEZE)
    push_to(logged, [(Q, f"lane {n}", n) for n in range(2000)])
    drain(logged, Q, batch=2000, partitions=2000)
    push_to(logged, [(Q, f"lane {n}", n) for n in range(2000)])
    logged.execute("ANALYZE skep.messages, skep.lease_log")
    return logged


def test_writing_and_pruning_go_by_indexes(long: psycopg.Connection):
    deliveries = pop(long, Q, batch=10, partitions=10)
    plans = explained(long, lambda: ack(long, deliveries))
    assert_indexed(plans, "runs_pkey", "messages_pkey", "group_queues_pkey")
    deliveries = pop(long, Q, batch=10, partitions=10)
    assert_indexed(explained(long, lambda: call(long, "fail", lease=deliveries[0].lease, error="no")), "messages_pkey")
    pass_time(long, 7200)
    plans = explained(long, lambda: call(long, "_prune_lease_log", max_rows=10))
    walked = {index for plan in plans for table, index in plan.scans() if table == "lease_log"}
    assert walked <= {"lease_log_finished_at", None}, "None: the rows themselves, by their place"
    assert any(node["Node Type"] == "Tid Scan" for plan in plans for node in plan.nodes())
