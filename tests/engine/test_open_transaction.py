"""An open transaction keeps every dead row in the tables. Push, pop and ack cost what they did before."""

import time
from collections.abc import Callable

import psycopg
import pytest

from tests.engine.verbs import ack, broken, call, lag, pop, push, refused, take

TOUCHED = """
    SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))
    FROM pg_statio_user_tables WHERE schemaname = 'skep'
"""


@pytest.fixture
def held(connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    """A connection, while another one holds a transaction with an id open."""
    connect(autocommit=False).execute("CREATE TEMP TABLE held (x integer)")
    return connect()


def work(connection: psycopg.Connection, rounds: int) -> None:
    """Push, pop and ack one message after the other, in three partitions and for two groups."""
    for n in range(rounds):
        push(connection, "q", n, partition=str(n % 3))
        for group in ("a", "b"):
            assert take(connection, "q", group, batch=1)


def cost(connection: psycopg.Connection) -> int:
    """Count the blocks that a few rounds read."""
    seen: list[int] = []
    for rounds in (0, 20):
        work(connection, rounds)
        connection.execute("SELECT pg_stat_force_next_flush()")
        seen.append(connection.execute(TOUCHED).fetchall()[0][0])
    return int(seen[1] - seen[0])


@pytest.mark.parametrize("waiting", [0, 5], ids=["drained", "never_drained"])
def test_the_cost_stays_the_same(held: psycopg.Connection, waiting: int):
    """Whether partitions are drained by every pop, or never."""
    for partition in range(3):
        push(held, "q", *range(waiting + 1), partition=str(partition))
    for group in ("a", "b"):
        assert [len(take(held, "q", group, batch=1)) for _ in range(3)] == [1] * 3
    work(held, 400)
    early = cost(held)
    work(held, 1600)
    held.execute("ANALYZE")  # as autovacuum does, which finds almost no rows; no plan may be misled by that
    late = cost(held)
    assert late < 2 * early, (early, late)
    assert (broken(held), sum(lag(held, "a").values())) == ({}, 3 * waiting)


def test_a_partition_whose_ack_commits_late_is_served(connect: Callable[..., psycopg.Connection]):
    """It is behind the start of the ready list by then, and is found soon if there is no other work."""
    late, others = connect(), connect()
    push(others, "q", 1, 2, partition="late")
    held = pop(late, "q", batch=1)
    with late.transaction():
        ack(late, held)
        for n in range(3):
            push(others, "q", n, partition="other")
            assert take(others, "q") == [n]
            time.sleep(0.2)
        assert take(others, "q") == []
    begin = time.monotonic()
    while not (taken := take(others, "q")):
        assert time.monotonic() < begin + 5
        time.sleep(0.1)
    assert taken == [2]
    assert broken(others) == {}


def test_a_late_partition_is_served_soon_while_others_are_busy(connect: Callable[..., psycopg.Connection]):
    late, others = connect(), connect()
    push(others, "q", 1, "late", partition="late")
    held = pop(late, "q", batch=1)
    push(others, "q", *range(20_000), partition="other")
    with late.transaction():
        ack(late, held)
        for _ in range(12):
            assert take(others, "q", batch=1) != ["late"]
            time.sleep(0.2)
    begin = time.monotonic()
    while take(others, "q", batch=1) != ["late"]:
        assert time.monotonic() < begin + 20
    assert lag(others)["late"] == 0


def test_an_older_snapshot_is_refused(connect: Callable[..., psycopg.Connection]):
    """A pop under REPEATABLE READ does not see what its group has done since, and would deliver it again."""
    for by_name in (False, True):
        queue, options = f"q{by_name}", {"partition": "a"} if by_name else {}
        older, others = connect(), connect()
        push(others, queue, *range(5), partition="a")
        call(others, "subscribe", group_name="g", queue=queue, mode="all")
        for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
            older.isolation_level = level
            with refused("SK001", "READ COMMITTED"), older.transaction():
                pop(older, queue, batch=1, **options)
        assert take(others, queue, batch=5, **options) == [0, 1, 2, 3, 4]
        assert broken(others) == {}
