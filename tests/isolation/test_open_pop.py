"""A pop whose transaction stays open changes only the runs that it leases: the group gets everything else."""

import time
from collections.abc import Callable

import psycopg
import pytest

from tests.engine.threads import until
from tests.engine.verbs import ack, broken, call, configure, drain, pass_time, pop, push, push_to, refused, take

Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def mq(connect: Connect) -> psycopg.Connection:
    return connect()


@pytest.fixture
def held(connect: Connect) -> psycopg.Connection:
    """A session with an open transaction."""
    session = connect(autocommit=False)
    session.execute("SELECT 1")
    return session


def test_the_ack_of_an_extended_lease_does_not_wait(mq: psycopg.Connection, held: psycopg.Connection):
    """The lease is at its old deadline in the list; a discovery moves it, but not in an open transaction."""
    push(mq, "q", 1)
    leased = pop(mq, "q", lease_time=0.1)
    call(mq, "extend", lease=leased[0].lease, seconds=60)
    time.sleep(0.2)
    assert pop(held, "q") == []
    mq.execute("SET lock_timeout = '1s'")
    ack(mq, leased)
    assert broken(mq) == {}


def test_a_run_behind_deleted_messages_is_left_to_others(mq: psycopg.Connection, held: psycopg.Connection):
    """The open pop has what it asked for: it does not move another run past a deleted message."""
    call(mq, "subscribe", group_name="g", queue="q")
    for name in ("x", "y"):
        push(mq, "q", 0, partition=name)
        assert take(mq, "q", partition=name) == [0]
    time.sleep(0.3)  # a discovery is due
    push(mq, "q", 1, partition="x")
    deleted, _ = push(mq, "q", 2, 3, partition="y")
    mq.execute("SELECT skep.delete_message(skep.message_id(%s, %s))", [deleted.partition_id, deleted.offset])
    assert [row.payload for row in pop(held, "q", batch=1)] == [1]
    assert take(mq, "q", batch=1) == [3]
    assert broken(mq) == {}


def test_an_empty_pop_does_not_hide_a_later_push(mq: psycopg.Connection, held: psycopg.Connection):
    """The open pop finds a drained run and leaves it in the list."""
    push(mq, "q", 0)
    assert take(mq, "q") == [0]
    time.sleep(1.1)  # a discovery that scans is due: it would take the run out of the list
    assert pop(held, "q") == []
    push(mq, "q", 1)
    until(lambda: take(mq, "q") == [1], "the run is locked")


def test_upkeep_takes_drained_runs_out_of_the_list(mq: psycopg.Connection):
    """Consumers that pop in open transactions alone leave them there."""
    push(mq, "q", 0)
    with mq.transaction():
        mq.execute("SELECT 1")
        assert take(mq, "q") == [0]
    in_list = "SELECT count(*) FROM skep.runs WHERE ready_at IS NOT NULL"
    assert mq.execute(in_list).fetchone() == (1,)
    pass_time(mq, 20)
    call(mq, "expire_leases")
    assert mq.execute(in_list).fetchone() == (0,)
    push(mq, "q", 1)
    assert take(mq, "q") == [1]


def test_an_ack_of_a_shared_partition_waits_five_seconds(mq: psycopg.Connection, held: psycopg.Connection):
    """The open pop has locked the open run, which counts the leases. The ack can be tried again."""
    configure(mq, "q", concurrency=4)
    push(mq, "q", 1, 2, 3)
    leased = pop(mq, "q", batch=1)
    assert len(pop(held, "q", batch=1)) == 1
    begin = time.monotonic()
    with refused("55P03"):
        ack(mq, leased)
    assert 4 < time.monotonic() - begin < 10
    held.rollback()
    ack(mq, leased)
    assert broken(mq) == {}


def test_a_pop_does_not_wait_for_an_open_subscribe_at_a_message(mq: psycopg.Connection, held: psycopg.Connection):
    """The subscribe has inserted the start of the group in the partition: the pop leaves that partition alone."""
    push(mq, "q", 1, partition="x")
    pushed = push(mq, "q", 2, partition="y")[0]
    assert take(mq, "q", partition="x") == [1]
    message = mq.execute("SELECT skep.message_id(%s, %s)::text", [pushed.partition_id, pushed.offset]).fetchall()[0][0]
    call(held, "subscribe", group_name="g", queue="q", mode="message_id", start_from=message)
    mq.execute("SET statement_timeout = '2s'")
    assert take(mq, "q", partition="y") == []
    held.commit()
    assert take(mq, "q", partition="y") == [2]
    assert broken(mq) == {}


def test_a_full_scan_goes_on_beside_an_open_pop(mq: psycopg.Connection, held: psycopg.Connection):
    """The open pop has locked the lost snapshot: the others scan the later pages although they cannot delete it."""
    names = [f"p{n:04}" for n in range(4100)]
    push_to(mq, [("q", name, 0) for name in names])
    assert len(drain(mq, "q", batch=100_000, partitions=5000)) == len(names)
    mq.execute("UPDATE skep.runs SET ready_at = NULL, drained = false")
    push_to(mq, [("q", names[0], 1), ("q", names[-1], 2)])
    mq.execute("SELECT skep.prune_journal('0 seconds')")
    assert [row.payload for row in pop(held, "q")] == [1]
    until(lambda: take(mq, "q") == [2], "the scan does not reach the last page")
