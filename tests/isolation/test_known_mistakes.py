"""Mistakes that a consume path invites, each as the interleaving that shows it, and what must hold instead.

A prototype of this engine made every one of them. Others have tests of their own: discovery in test_wake_up.py, pruning
in test_push_and_pop.py, retention in test_retention.py.
"""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import explained
from tests.engine.threads import until
from tests.engine.verbs import (
    Row,
    ack,
    broken,
    call,
    configure,
    drain,
    lag,
    pass_time,
    pop,
    push,
    push_to,
    refused,
    take,
)
from tests.isolation.steps import BLOCKED

Connect = Callable[..., psycopg.Connection]
HOUR = 3600


def offsets(deliveries: list[Row]) -> list[int]:
    return [delivery.offset for delivery in deliveries]


def ack_each(mq: psycopg.Connection, deliveries: list[Row]) -> list[bool]:
    """Acknowledge message by message, in one call; return which acks were applied."""
    results = call(
        mq, "ack_many", leases=[row.lease for row in deliveries], ids=[row.id for row in deliveries],
        statuses=["completed"] * len(deliveries),
    )  # fmt: skip
    return [result.applied for result in results]


def start(connection: psycopg.Connection, observer: psycopg.Connection, job: Callable[[], object]) -> Future:
    """Run a job in a thread; return when it is blocked by another session, or has ended."""
    threads = ThreadPoolExecutor(1)
    future = threads.submit(job)
    threads.shutdown(wait=False)
    pid = connection.info.backend_pid
    until(
        lambda: future.done() or observer.execute(BLOCKED, [pid]).fetchall() == [(True,)],
        "the job neither ends nor waits",
    )
    return future


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("by_message", [True, False], ids=["by_message", "by_lease"])
def test_acks_beyond_a_halved_run_are_kept(connect: Connect, concurrency: int, *, by_message: bool):
    """1 to 8 of ten are acknowledged, the lease expires, and 0 is acknowledged alone: only 9 is left."""
    mq = connect()
    configure(mq, "q", concurrency=concurrency)
    push(mq, "q", *range(10))
    assert ack_each(mq, pop(mq, "q")[1:9]) == [True] * 8
    pass_time(mq, HOUR)
    first = pop(mq, "q")
    assert offsets(first) == [0]
    if by_message:
        ack_each(mq, first)
    else:
        ack(mq, first)
    assert offsets(drain(mq, "q")) == [9]
    assert (broken(mq), lag(mq)) == ({}, {"Default": 0})


@pytest.mark.parametrize("partition", ["Default", None], ids=["by_name", "any"])
def test_auto_ack_passes_messages_that_were_acknowledged_before(connect: Connect, partition: str | None):
    """The messages between the halves of a returned run are done: the partition continues after them."""
    mq = connect()
    push(mq, "q", *range(10))
    ack_each(mq, pop(mq, "q")[1:9])
    pass_time(mq, HOUR)
    got = [offsets(pop(mq, "q", partition=partition, auto_ack=True, batch=1)) for _ in range(2)]
    assert (got, broken(mq)) == ([[0], [9]], {})
    push(mq, "q", 10)
    assert offsets(pop(mq, "q", partition=partition, auto_ack=True)) == [10]
    assert (broken(mq), lag(mq)) == ({}, {"Default": 0})


def test_a_group_has_one_open_run(connect: Connect):
    """A pop with an old snapshot is refused, in every way to pop; the tables cannot store a second open run."""
    older, others = connect(), connect()
    push(others, "ns.q", 1, 2)
    older.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with older.transaction():
        older.execute("SELECT")
        assert take(others, "ns.q", batch=1) == [1]
        scopes: list[dict[str, Any]] = [
            {"queue": "ns.q"},
            {"queue": "ns.q", "partition": "Default"},
            {"namespace": "ns"},
        ]
        for scope in scopes:
            with refused("SK001", "READ COMMITTED"), older.transaction():
                call(older, "pop", group_name="g", **scope)
    with pytest.raises(psycopg.errors.UniqueViolation):
        others.execute("INSERT INTO skep.starts SELECT * FROM skep.starts")
    assert [row.payload for row in drain(others, "ns.q")] == [2]


@pytest.mark.parametrize("known", [True, False], ids=["known_partitions", "first_contact"])
def test_a_pop_in_an_open_transaction_hides_only_what_it_leases(connect: Connect, *, known: bool):
    """39 of 40 partitions that have work are served to others meanwhile."""
    slow, others = connect(), connect()
    partitions = [f"{n:02}" for n in range(40)]
    push_to(others, [("q", partition, 0) for partition in partitions])
    call(others, "subscribe", group_name="g", queue="q", mode="all")
    pop(others, "q", partition="00", auto_ack=True)  # the group exists
    if known:
        drain(others, "q", partitions=40)
        pass_time(others, 1)
        assert pop(others, "q") == []  # drained partitions leave the ready list
        push_to(others, [("q", partition, 1) for partition in partitions])
    with slow.transaction(force_rollback=True):
        leased = pop(slow, "q")
        assert len(leased) == 1
        served = {row.partition for row in drain(others, "q")}
        expected = {*partitions} - {leased[0].partition} - (set() if known else {"00"})
        assert served == expected
    assert [row.partition for row in drain(others, "q")] == [leased[0].partition]
    assert broken(others) == {}


LONG_AGO = """
    UPDATE skep.discoveries SET discovered_at = now() - interval '1 hour', scan_at = now() - interval '1 hour'
    WHERE id IN (SELECT id FROM skep.discoveries FOR UPDATE SKIP LOCKED)
"""


def test_a_pop_that_drains_and_commits_late_hides_no_push(connect: Connect):
    """A pop that has taken 40 drained partitions out of the ready list is held open while one of them is filled."""
    slow, others = connect(), connect()
    push_to(others, [("q", f"{n:02}", 0) for n in range(40)])
    assert len(take(others, "q", partitions=40)) == 40
    pass_time(others, 2)
    with slow.transaction():
        assert pop(slow, "q", autocommit=True) == []
        marked = "SELECT count(*) FROM skep.runs WHERE ready_at IS NULL"
        assert [slow.execute(marked).fetchall(), others.execute(marked).fetchall()] == [[(40,)], [(0,)]]
        push(others, "q", "woken", partition="07")
        for _ in range(2):  # discoveries that store a snapshot
            assert take(others, "q") == []
            others.execute(LONG_AGO)
    assert take(others, "q") == ["woken"]
    assert broken(others) == {}


def test_a_deleted_partition_in_the_journal_does_not_block_discovery(connect: Connect):
    """Snapshots are still stored, so that discoveries stay cheap and late acks are found."""
    mq = connect()
    push(mq, "q", 1, partition="x")
    drain(mq, "q")
    push(mq, "q", 2, partition="doomed")
    call(mq, "delete_partition", queue="q", partition="doomed")
    pass_time(mq, 2)
    assert pop(mq, "q") == []
    query = """
        SELECT d.left_over, d.scan_after, pg_visible_in_snapshot(j.xid, d.snapshot)
        FROM skep.discoveries d CROSS JOIN (SELECT max(xid::text::bigint)::text::xid8 AS xid FROM skep.journal) j
    """
    assert mq.execute(query).fetchall() == [(None, None, True)]


def test_a_retry_of_a_full_partition_hides_no_other(connect: Connect):
    """It is first in the ready list, and has no room for a lease."""
    mq = connect()
    configure(mq, "q", concurrency=3, retry_delay=0)
    push(mq, "q", *range(9), partition="full")
    leases = [pop(mq, "q", batch=1)[0].lease for _ in range(3)]
    call(mq, "release", lease=leases[0])
    configure(mq, "q", concurrency=2)
    push(mq, "q", "other", partition="other")
    pass_time(mq, 1)
    assert take(mq, "q", batch=1) == ["other"]
    assert take(mq, "q", batch=1) == []


STOP_IN_THE_WALK = """
    ALTER FUNCTION skep._is_quiet(bigint, timestamptz) RENAME TO _is_quiet_at_once;
    CREATE FUNCTION skep._is_quiet(partition_id bigint, since timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('application_name') = 'slow' THEN
            PERFORM pg_advisory_xact_lock_shared(1);
        END IF;
        RETURN true;
    END $$;
"""


def test_a_run_that_is_cut_while_a_pop_reads_it_is_leased_to_the_cut(connect: Connect):
    """Another pop has leased three messages of it and failed: they are returned separately, at their attempt."""
    slow, others, observer = connect(application_name="slow"), connect(), connect()
    configure(observer, "q", window_buffer=0.000001, retry_delay=0)
    push(observer, "q", *range(10))
    assert take(observer, "q", batch=1) == [0]
    observer.execute(STOP_IN_THE_WALK)
    with observer.transaction():
        ((before, _),) = observer.execute("SELECT clock_timestamp(), pg_advisory_xact_lock(1)").fetchall()
        popped = start(slow, others, lambda: pop(slow, "q"))
        assert not popped.done()
        call(others, "fail", lease=pop(others, "q", batch=3)[0].lease, error="no")
        others.execute(
            "UPDATE skep.runs SET ready_at = %s", [before]
        )  # as if the other pop had begun before the slow one
    assert [(row.offset, row.attempt) for row in popped.result(10)] == [(1, 2), (2, 2), (3, 2)]
    assert broken(observer) == {}


def test_a_lease_id_cannot_be_guessed(connect: Connect):
    """40 bits are random; no neighbour of an id is accepted, nor an old id of the same run, nor one of another."""
    mq = connect()
    push(mq, "q", 1, partition="x")
    push(mq, "q", 1, partition="y")
    old = pop(mq, "q", partition="x")[0]
    call(mq, "release", lease=old.lease)
    new, other = pop(mq, "q", partition="x")[0], pop(mq, "q", partition="y")[0]
    assert (old.lease.int >> 40, old.lease.int != new.lease.int) == (new.lease.int >> 40, True)
    guesses = [old.lease, *(uuid.UUID(int=new.lease.int ^ 1 << bit) for bit in range(128))]
    for ids in (None, [new.id] * len(guesses)):
        results = call(mq, "ack_many", leases=guesses, ids=ids, statuses=["completed"] * len(guesses))
        assert not any(result.applied for result in results)
    results = call(mq, "ack_many", leases=[new.lease, other.lease], ids=[other.id, new.id], statuses=["completed"] * 2)
    assert [result.applied for result in results] == [False, False]
    ack(mq, [new, other])


@pytest.mark.parametrize("whole", [True, False], ids=["whole_leases", "some_messages"])
def test_acks_of_many_leases_that_wait_are_applied(connect: Connect, *, whole: bool):
    """Another session has changed one of the runs, and commits."""
    one, two, observer = connect(), connect(), connect()
    push_to(one, [("q", partition, n) for partition in "xyz" for n in range(2)])
    rows = pop(one, "q", partitions=3)
    with two.transaction():
        call(two, "extend", lease=next(row.lease for row in rows if row.partition == "y"), seconds=60)
        acks = start(one, observer, lambda: ack_each(one, rows if whole else rows[1::2]))
        assert not acks.done()
    assert acks.result(10) == [True] * (6 if whole else 3)
    assert (broken(one), lag(one)) == ({}, dict.fromkeys("xyz", 0 if whole else 2))


@pytest.mark.parametrize("whole", [True, False], ids=["whole_leases", "some_messages"])
def test_acks_of_many_leases_in_opposite_order_do_not_deadlock(connect: Connect, *, whole: bool):
    """Both wait for the same run first: neither has locked what the other needs."""
    one, two, third, observer = (connect() for _ in range(4))
    push_to(one, [("q", partition, n) for partition in "xy" for n in range(2)])
    rows = pop(one, "q", partitions=2)
    acked = rows if whole else [rows[1], rows[3]]
    with third.transaction():
        call(third, "extend", lease=rows[0].lease, seconds=60)
        forwards = start(one, observer, lambda: ack_each(one, acked))
        backwards = start(two, observer, lambda: ack_each(two, acked[::-1]))
    assert sorted([all(forwards.result(10)), all(backwards.result(10))]) in ([False, True], [True, True])
    assert broken(one) == {}
    assert offsets(drain(one, "q")) == []


def test_a_message_deleted_from_a_lease_holds_nothing_up(connect: Connect):
    """Acks one by one of the others end the lease; a run of nothing but deleted messages is passed."""
    mq = connect()
    push(mq, "q", *range(12))
    delete = "SELECT skep.delete_message(%s)"
    leased = pop(mq, "q", batch=5)
    mq.execute(delete, [leased[2].id])
    for row in leased[:2] + leased[3:]:
        assert ack_each(mq, [row]) == [True]
    assert mq.execute("SELECT count(*) FROM skep.leases").fetchall() == [(0,)]
    for offset in (5, 6, 7, 9):
        mq.execute("SELECT skep.delete_message(skep.message_id(%s, %s))", [leased[0].partition_id, offset])
    again = pop(mq, "q", batch=3)
    assert offsets(again)[0] == 8
    assert ack_each(mq, again) == [True] * len(again)
    assert offsets(drain(mq, "q"))[-1:] + offsets(again)[-1:] != []
    assert (lag(mq), mq.execute("SELECT count(*) FROM skep.dead_letters").fetchall()) == ({"Default": 0}, [(0,)])
    assert broken(mq) == {}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_returned_run_of_deleted_messages_is_passed(connect: Connect, concurrency: int):
    """Retention does not wait for it."""
    mq = connect()
    configure(mq, "q", concurrency=concurrency, completed_retention_seconds=0)
    push(mq, "q", *range(4))
    first = pop(mq, "q", batch=1)
    call(mq, "release", lease=first[0].lease)
    mq.execute("SELECT skep.delete_message(%s)", [first[0].id])
    assert offsets(drain(mq, "q")) == [1, 2, 3]
    assert pop(mq, "q") == []
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})
    call(mq, "retain")
    assert mq.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]


def test_a_seek_moves_a_partition_that_is_discovered_meanwhile(connect: Connect):
    """The pop's transaction starts in a new partition; the seek to the end waits for it, and moves it."""
    popping, seeking, observer = connect(), connect(), connect()
    push(observer, "q", 1, partition="x")
    drain(observer, "q")
    push(observer, "q", 2, 3, partition="y")
    with popping.transaction():
        assert len(pop(popping, "q", batch=1)) == 1
        sought = start(seeking, observer, lambda: call(seeking, "seek", group_name="g", queue="q", position="end"))
        assert not sought.done()
    sought.result(10)
    push(observer, "q", 4, partition="y")
    assert take(observer, "q") == [4]
    assert broken(observer) == {}


def test_a_partition_discovered_during_a_seek_starts_at_its_position(connect: Connect):
    """The seek's transaction is open: a pop gets nothing of the new partition, and afterwards only later messages."""
    popping, seeking = connect(), connect()
    push(popping, "q", 1, partition="x")
    drain(popping, "q")
    with seeking.transaction():
        call(seeking, "seek", group_name="g", queue="q", position="end")
        push(popping, "q", 2, partition="y")
        assert take(popping, "q") == []
    pass_time(popping, 1)
    assert take(popping, "q") in ([2], [])  # pushed after the seek, before its commit
    push(popping, "q", 3, partition="y")
    assert take(popping, "q") == [3]
    assert broken(popping) == {}


STOP_IN_DISCOVERY = """
    ALTER FUNCTION skep._current_snapshot() RENAME TO _current_snapshot_at_once;
    CREATE FUNCTION skep._current_snapshot() RETURNS pg_snapshot LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(1);
        RETURN skep._current_snapshot_at_once();
    END $$;
"""


def test_a_deleted_group_leaves_nothing_behind(connect: Connect):
    """A pop that began before the deletion ends after it: retention waits for no group."""
    popping, deleting, observer = connect(), connect(), connect()
    push(observer, "q", 1, partition="x")
    drain(observer, "q")
    drain(observer, "q", "other")
    push(observer, "q", 2, partition="y")
    pass_time(observer, 2)
    observer.execute(STOP_IN_DISCOVERY)
    with deleting.transaction():
        deleting.execute("SELECT pg_advisory_xact_lock(1)")
        popped = start(popping, observer, lambda: pop(popping, "q"))
        assert not popped.done()
        call(deleting, "delete_group", group_name="g", queue="q")
    assert popped.result(10) == []
    tables = ("runs", "starts", "discoveries", "group_queues")
    left = {table: observer.execute(f"SELECT count(*) FROM skep.{table}".encode()).fetchall()[0][0] for table in tables}
    drain(observer, "q", "other")
    assert left == {"runs": 1, "starts": 1, "discoveries": 1, "group_queues": 1}  # of the other group
    assert broken(observer) == {}
    configure(observer, "q", completed_retention_seconds=0)
    assert sum(row.end_offset - row.first_offset for row in call(observer, "retain")) == 2


def test_a_start_in_a_partition_that_is_deleted_leaves_nothing_behind(connect: Connect):
    """The subscription waits for the deletion of the message at which it wants to start."""
    subscribing, deleting, observer = connect(), connect(), connect()
    message = push(observer, "q", 1, 2, partition="x")[1]
    push(observer, "q", 1, partition="y")
    ((start_from,),) = observer.execute("SELECT skep.message_id(%s, 1)::text", [message.partition_id]).fetchall()
    arguments = {"group_name": "g", "queue": "q", "mode": "message_id", "start_from": start_from}
    with deleting.transaction():
        call(deleting, "delete_partition", queue="q", partition="x")
        subscribed = start(subscribing, observer, lambda: call(subscribing, "subscribe", **arguments))
        assert not subscribed.done()
    assert [row.mode for row in subscribed.result(10)] == ["timestamp"]
    assert broken(observer) == {}


def test_a_pop_of_a_namespace_does_not_wait_for_a_queue_that_is_deleted(connect: Connect):
    """The group has not read that queue yet; the others are served."""
    popping, deleting = connect(), connect()
    configure(popping, "ns.work", semantics="queue")
    push(popping, "ns.work", 1)
    push(popping, "ns.other", 2)
    popping.execute("SET statement_timeout = '2s'")
    with deleting.transaction(force_rollback=True):
        call(deleting, "delete_queue", queue="ns.work")
        assert take(popping, None, namespace="ns") == [2]
    assert take(popping, None, namespace="ns") == [1]
    assert broken(popping) == {}


def test_leases_that_expire_together_do_not_slow_down_a_pop(connect: Connect):
    """A thousand of them: the scan of the ready list passes none of them."""
    mq = connect()
    if mq.info.parameter_status("is_superuser") != "on":
        pytest.skip("plans are shown to superusers only")
    push_to(mq, [("q", f"{n:04}", n) for n in range(1000)])
    assert len(pop(mq, "q", partitions=1000, batch=1000)) == 1000
    pass_time(mq, HOUR)
    push(mq, "q", 1, 2, partition="busy")
    assert len(pop(mq, "q", partition="busy", batch=1, auto_ack=True)) == 1
    mq.execute("UPDATE skep.discoveries SET discovered_at = clock_timestamp()")
    plans = explained(mq, lambda: pop(mq, "q", batch=1), analyze=True)
    walks = [plan.rows_touched() for plan in plans if "sized AS" in plan.query]
    assert walks
    assert max(walks) <= 20


def test_offsets_are_never_used_twice(connect: Connect):
    """The last messages of a partition are deleted by retention or clear_queue, also while a push is open."""
    mq, other = connect(), connect()
    configure(mq, "q", completed_retention_seconds=0)
    push(mq, "q", 0, 1, 2)
    drain(mq, "q")
    call(mq, "retain")
    assert mq.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]
    assert offsets(push(mq, "q", 3)) == [3]
    call(mq, "clear_queue", queue="q")
    assert offsets(push(mq, "q", 4)) == [4]
    with other.transaction():
        assert offsets(push(other, "q", 5)) == [5]
        call(mq, "clear_queue", queue="q")
    assert offsets(push(mq, "q", 6)) == [6]
    assert (offsets(drain(mq, "q")), broken(mq)) == ([5, 6], {})


def test_a_transaction_acknowledges_before_it_pushes(connect: Connect):
    """Another session of its consumer extends the lease and pushes to the same partition: no deadlock."""
    one, two, observer = connect(), connect(), connect()
    push(observer, "q", 1, partition="in")
    push(observer, "q", 0, partition="out")
    leased = pop(one, "q", partition="in")[0]
    operations = [
        {"push": {"queue": "q", "partition": "out", "payload": "after"}},
        {"ack": {"lease": str(leased.lease), "id": str(leased.id)}},
    ]
    with two.transaction():
        call(two, "extend", lease=leased.lease, seconds=60)
        done = start(one, observer, lambda: call(one, "transaction", operations=Jsonb(operations)))
        assert not done.done()
        push(two, "q", "before", partition="out")
    assert len(done.result(10)) == 1
    assert [row.payload for row in drain(observer, "q", partition="out")] == [0, "before", "after"]


def test_order_is_kept_when_concurrency_is_lowered_to_one(connect: Connect):
    """Leased and returned runs are completed before anything new is delivered."""
    mq = connect()
    configure(mq, "q", concurrency=4, retry_delay=0)
    push(mq, "q", *range(8))
    runs = [pop(mq, "q", batch=2) for _ in range(3)]
    configure(mq, "q", concurrency=1)
    assert pop(mq, "q") == []
    ack(mq, runs[2])
    assert pop(mq, "q") == []
    call(mq, "release", lease=runs[1][0].lease)
    assert pop(mq, "q") == []  # 0 and 1 are still leased
    call(mq, "release", lease=runs[0][0].lease)
    assert offsets(drain(mq, "q", batch=2)) == [0, 1, 2, 3, 6, 7]
    assert broken(mq) == {}


SLOW_SCAN = """
    ALTER FUNCTION skep._first_ready_time(integer, integer[], timestamptz) RENAME TO _first_ready_time_at_once;
    CREATE FUNCTION skep._first_ready_time(list integer, priorities integer[], after timestamptz) RETURNS timestamptz
    LANGUAGE plpgsql STABLE AS $$
    BEGIN
        IF after = '-infinity' THEN
            PERFORM pg_sleep(0.05);
        END IF;
        RETURN skep._first_ready_time_at_once(list, priorities, after);
    END $$;
"""


def test_a_slow_full_scan_is_run_less_often(connect: Connect):
    """Under a held snapshot the ready list is full of dead entries: the scan takes a hundredth of the time at most."""
    mq = connect()
    push(mq, "q", 1)
    drain(mq, "q")
    mq.execute(SLOW_SCAN)
    pass_time(mq, HOUR)
    assert pop(mq, "q") == []
    query = "SELECT extract(epoch FROM scan_at - discovered_at)::float FROM skep.discoveries"
    ((pause,),) = mq.execute(query).fetchall()
    assert pause >= 5
    began = time.monotonic()
    for _ in range(20):
        assert pop(mq, "q") == []
    assert time.monotonic() < began + 20 * 0.05


def test_a_first_pop_writes_nothing_for_partitions_without_messages(connect: Connect):
    """A group for new messages discovers 3,000 partitions: it gets a run where a message arrives."""
    mq = connect()
    push_to(mq, [("q", f"{n:04}", n) for n in range(3000)])
    pass_time(mq, HOUR)
    assert pop(mq, "q", subscription_mode="new") == []
    push(mq, "q", "new", partition="1234")
    assert take(mq, "q") == ["new"]
    assert mq.execute("SELECT (SELECT count(*) FROM skep.runs), (SELECT count(*) FROM skep.starts)").fetchall() == [
        (1, 1)
    ]
    assert broken(mq) == {}


def test_a_pop_by_name_serves_a_partition_in_any_state(connect: Connect):
    """Unknown, drained, with an expired lease, behind deleted messages: without a discovery."""
    mq = connect()
    push_to(mq, [("q", partition, n) for partition in ("drained", "expired", "deleted") for n in range(2)])
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    drain(mq, "q", partition="drained")
    pass_time(mq, 2)
    pop(mq, "q", partition="expired", lease_time=1)
    rows = pop(mq, "q", partition="deleted", batch=1)
    mq.execute("SELECT skep.delete_message(%s)", [rows[0].id])
    pass_time(mq, HOUR)
    mq.execute("UPDATE skep.runs SET ready_at = NULL WHERE lease_id IS NULL")  # as discovery leaves drained ones
    push(mq, "q", 2, partition="drained")
    push(mq, "q", 0, partition="unknown")
    got = {name: take(mq, "q", partition=name, batch=1) for name in ("unknown", "drained", "expired", "deleted")}
    assert got == {"unknown": [0], "drained": [2], "expired": [0], "deleted": [1]}
    assert broken(mq) == {}


def test_a_pruned_push_that_a_snapshot_did_not_see_is_found(connect: Connect):
    """It began before the snapshot was stored and committed after it: below the end of the snapshot, and not in it."""
    mq, slow = connect(), connect()
    push(mq, "q", 0, partition="x")
    drain(mq, "q")
    with slow.transaction():
        push(slow, "q", "late", partition="y")
        mq.execute(LONG_AGO)
        assert pop(mq, "q") == []
        query = """
            SELECT count(*) FROM skep.discoveries d CROSS JOIN pg_snapshot_xip(d.snapshot)
            WHERE d.discovered_at > now() - interval '1 min'
        """
        assert mq.execute(query).fetchall() == [(1,)]
    assert call(mq, "prune_journal", older_than="0 s") == [(2,)]
    assert take(mq, "q") == ["late"]
    assert broken(mq) == {}


def test_advisory_locks_of_an_application(connect: Connect):
    """An application holds advisory locks with small numbers for ever, and no partition is withheld from a group."""
    mq, application = connect(), connect()
    push(mq, "q", 1)
    application.execute("SELECT pg_advisory_lock(a, b) FROM generate_series(0, 9) AS a, generate_series(0, 9) AS b")
    application.execute("SELECT pg_advisory_lock(a) FROM generate_series(0, 99) AS a")
    assert (take(mq, "q"), take(mq, "q", "another", partition="Default")) == ([1], [1])


def test_an_open_ack_beside_returned_runs_hides_only_its_partitions(connect: Connect):
    """A returned run cannot be leased while its open run is locked; it does not use up the slot of another one."""
    mq, other = connect(), connect()
    configure(mq, "q", concurrency=4)
    push_to(mq, [("q", f"x{n % 3}", n) for n in range(6)])
    held = [pop(mq, "q", batch=1, partition=f"x{n % 3}") for n in range(6)]
    for deliveries in held[:3]:
        call(mq, "release", lease=deliveries[0].lease)
    with other.transaction():
        for deliveries in held[3:]:
            ack(other, deliveries)
        push(mq, "q", "wanted", partition="y")
        assert [delivery.payload for delivery in pop(mq, "q", batch=1)] == ["wanted"]
    pass_time(mq, HOUR)
    assert sorted(str(delivery.payload) for delivery in drain(mq, "q")) == ["0", "1", "2", "wanted"]
    assert broken(mq) == {}


def test_an_expired_lease_beside_an_open_ack_hides_only_its_partition(connect: Connect):
    """A lease whose open run is locked does not expire yet; it does not keep others from it."""
    mq, other = connect(), connect()
    configure(mq, "q", concurrency=2)
    push(mq, "q", 1, 2, partition="x")
    pop(mq, "q", batch=1, lease_time=1)
    held = pop(mq, "q", batch=1, lease_time=2 * HOUR)
    push(mq, "q", 3, partition="y")
    pop(mq, "q", partition="y", lease_time=2)
    pass_time(mq, HOUR)
    with other.transaction():
        ack(other, held)
        assert [delivery.payload for delivery in pop(mq, "q", autocommit=False)] == [3]
    assert sorted(delivery.payload for delivery in drain(mq, "q")) == [1]
    assert broken(mq) == {}


def test_all_leases_of_a_shared_partition_expire_at_once(connect: Connect):
    """Each of them changes the open run, which must not hide the next ones."""
    mq = connect()
    configure(mq, "q", concurrency=90)
    push(mq, "q", *range(90))
    for _ in range(90):
        pop(mq, "q", batch=1)
    pass_time(mq, HOUR)
    call(mq, "expire_leases")
    assert mq.execute("SELECT count(*) FROM skep.leases").fetchall() == [(0,)]


QUEEN_ACK = """
    SELECT success FROM skep._queen_ack(%s::uuid[], %s::text[], array_fill('g'::text, ARRAY[%s]), %s::uuid[],
                                        array_fill('completed'::text, ARRAY[%s]), array_fill(NULL::text, ARRAY[%s]))
"""


def queen_ack(connection: psycopg.Connection, deliveries: list[Row]) -> list[bool]:
    number = len(deliveries)
    addresses = [
        connection.execute("SELECT skep._partition_uuid(%s)", [delivery.partition_id]).fetchall()[0][0]
        for delivery in deliveries
    ]
    ids = [str(delivery.id) for delivery in deliveries]
    leases = [delivery.lease for delivery in deliveries]
    answers = connection.execute(QUEEN_ACK, [addresses, ids, number, leases, number, number]).fetchall()
    return [success for (success,) in answers]


def test_acks_of_whole_leases_and_of_parts_of_leases_lock_in_one_order(connect: Connect):
    """Two calls that have whole leases in different shared partitions do not deadlock."""
    mq, one, two, other = connect(), connect(), connect(), connect()
    configure(mq, "q", concurrency=8)
    push_to(mq, [("q", name, n) for n in range(8) for name in "xyz"])
    mine = {name: pop(mq, "q", batch=2, partition=name) for name in "xyz"}
    his = {name: pop(mq, "q", batch=2, partition=name) for name in "xyz"}
    held = pop(mq, "q", batch=1, partition="x")

    def is_blocked(session: psycopg.Connection) -> bool:
        return mq.execute(BLOCKED, [session.info.backend_pid]).fetchall() == [(True,)]

    with ThreadPoolExecutor(2) as pool:
        with other.transaction():
            ack(other, held)  # locks the open run of x
            first = pool.submit(queen_ack, one, [mine["x"][0], mine["y"][0], *mine["z"]])
            until(lambda: is_blocked(one), "the first call to wait for x")
            second = pool.submit(queen_ack, two, [*his["y"], his["z"][0]])
            until(lambda: second.done() or is_blocked(two), "the second call to wait, or to end")
        assert (first.result(), second.result()) == ([True] * 4, [True] * 3)
    assert broken(mq) == {}
