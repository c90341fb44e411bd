"""Samples of heads and cursors give exact rates and lags, and their number is bounded."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from tests.engine.verbs import Row, ack, call, configure, pass_time, pop, push, take

Q = "orders"


def sample(mq: psycopg.Connection) -> None:
    call(mq, "sample", not_within="0 s")


def history(mq: psycopg.Connection, group: str = "", **options: Any) -> list[Row]:
    return call(mq, "history", queue=Q, group_name=group, **options)


def test_rates_and_lags(mq: psycopg.Connection):
    push(mq, Q, *range(10))
    take(mq, Q, batch=4)
    sample(mq)
    pass_time(mq, 10)
    push(mq, Q, *range(20), partition="b")
    take(mq, Q, batch=6, partition="Default")
    take(mq, Q, batch=5, partition="b")
    sample(mq)
    assert [round(row.rate, 1) for row in history(mq) if row.rate] == [2.0]
    assert [round(row.rate, 1) for row in history(mq, "g") if row.rate] == [1.1]
    assert [row.lag for row in history(mq, "g")] == [6, 15]
    assert [round(row.lag_seconds) for row in history(mq, "g")] == [0, 0]


def test_totals_do_not_fall_when_partitions_are_deleted(mq: psycopg.Connection):
    configure(mq, Q, completed_retention_seconds=0, drop_idle_seconds=1)
    push(mq, Q, *range(10))
    take(mq, Q)
    sample(mq)
    pass_time(mq, 10)
    call(mq, "retain")
    call(mq, "drop_idle_partitions")
    push(mq, Q, 1, partition="new")
    sample(mq)
    assert [row.rate is None or row.rate >= 0.09 for row in history(mq)] == [True, True]
    totals = mq.execute("SELECT group_name, array_agg(total::int ORDER BY at) FROM skep.samples GROUP BY 1").fetchall()
    assert dict(totals) == {"": [10, 11], "g": [10, 10]}


def test_servers_take_turns(mq: psycopg.Connection):
    push(mq, Q, 1)
    assert [call(mq, "sample")[0].sample for _ in range(3)] == [1, 0, 0]


def test_old_samples_are_thinned_out(mq: psycopg.Connection):
    """Every sample for an hour, one a minute for a week, then none."""
    push(mq, Q, 1)
    for _ in range(30):
        pass_time(mq, 10)
        sample(mq)
    assert call(mq, "_prune_samples")[0][0] == 0
    pass_time(mq, 3600)
    call(mq, "_prune_samples")
    assert 5 <= len(history(mq, since="2 hours")) <= 6
    pass_time(mq, 7 * 24 * 3600)
    call(mq, "_prune_samples")
    assert mq.execute("SELECT FROM skep.samples").fetchall() == []


def counted(mq: psycopg.Connection) -> bool:
    """Write a sample; return whether the queue was counted for it."""
    before = mq.execute("SELECT counted_at FROM skep.sample_counts").fetchall()
    sample(mq)
    return mq.execute("SELECT counted_at FROM skep.sample_counts").fetchall() != before


def test_a_drained_queue_repeats_its_sample(mq: psycopg.Connection):
    push(mq, Q, *range(10))
    take(mq, Q, batch=10)
    sample(mq)
    counts = [(row.total, row.lag, row.leased) for row in samples(mq)]
    for _ in range(3):
        pass_time(mq, 10)
        assert not counted(mq)
        assert [(row.total, row.lag, row.leased) for row in samples(mq)] == counts
    assert [row.lag for row in history(mq)] == [10] * 4
    pass_time(mq, 40)
    assert counted(mq), "once a minute"


def samples(mq: psycopg.Connection) -> list[Row]:
    query = "SELECT * FROM skep.samples WHERE at = (SELECT max(at) FROM skep.samples) ORDER BY group_name"
    return mq.cursor(row_factory=namedtuple_row).execute(query).fetchall()


def do_push(mq: psycopg.Connection) -> None:
    push(mq, Q, 1)


def do_seek(mq: psycopg.Connection) -> None:
    call(mq, "seek", group_name="g", queue=Q, position="beginning")


def do_clear(mq: psycopg.Connection) -> None:
    call(mq, "clear_queue", queue=Q)


def do_retain(mq: psycopg.Connection) -> None:
    configure(mq, Q, max_size=3)
    call(mq, "retain")


def do_delete_partition(mq: psycopg.Connection) -> None:
    call(mq, "delete_partition", queue=Q, partition="Default")


def do_subscribe(mq: psycopg.Connection) -> None:
    call(mq, "subscribe", group_name="late", queue=Q)


def do_delete_group(mq: psycopg.Connection) -> None:
    call(mq, "delete_group", group_name="g", queue=Q, keep_subscription=True)


CHANGES = [do_push, do_seek, do_clear, do_retain, do_delete_partition, do_subscribe, do_delete_group]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_counted(mq: psycopg.Connection, change: Callable[[psycopg.Connection], None]):
    """The sample after a change is the same as a full count."""
    push(mq, Q, *range(10))
    take(mq, Q, batch=10)
    sample(mq)
    assert not counted(mq)
    change(mq)
    sample(mq)
    repeated = [(row.group_name, row.total, row.lag, row.leased, row.oldest_at) for row in samples(mq)]
    mq.execute("DELETE FROM skep.sample_counts")
    sample(mq)
    assert [(row.group_name, row.total, row.lag, row.leased, row.oldest_at) for row in samples(mq)] == repeated


def test_leases_are_counted(mq: psycopg.Connection):
    push(mq, Q, *range(10))
    leased = pop(mq, Q, batch=10)
    sample(mq)
    assert [row.leased for row in samples(mq)] == [0, 1]
    ack(mq, leased)
    sample(mq)
    assert [(row.lag, row.leased) for row in samples(mq)][1] == (0, 0)


def do_pop(mq: psycopg.Connection) -> None:
    assert pop(mq, Q, batch=1)
    mq.execute("UPDATE skep.sample_counts SET seconds = 0")
    sample(mq)
    mq.execute("UPDATE skep.sample_counts SET seconds = 5")


@pytest.mark.parametrize(("change", "share"), [(do_push, 10), (do_pop, 10), (None, 100)])
def test_a_queue_that_takes_long_to_count_is_counted_less_often(mq: psycopg.Connection, change: Any, share: int):
    """A queue whose count took 5 seconds is counted every 50 seconds while it is busy, and every 500 when idle."""
    push(mq, Q, *range(10))
    take(mq, Q, batch=4)
    sample(mq)
    mq.execute("UPDATE skep.sample_counts SET seconds = 5")
    if change:
        change(mq)
    pass_time(mq, 5 * share - 5)
    assert not counted(mq)
    pass_time(mq, 10)
    assert counted(mq)


def test_a_mark_that_is_not_committed_does_not_stop_samples(
    mq: psycopg.Connection, connect_module: Callable[..., psycopg.Connection]
):
    push(mq, Q, *range(10))
    sample(mq)
    with connect_module() as other, other.transaction():
        do_seek(other)
        push(mq, Q, 1)
        sample(mq)
        assert samples(mq)[0].total == 11
