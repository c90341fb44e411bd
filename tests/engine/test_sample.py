"""Samples of heads and cursors: exact rates and lags, of bounded size."""

from typing import Any

import psycopg

from tests.engine.verbs import Row, call, configure, pass_time, push, take

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


def test_totals_do_not_fall_when_lanes_go(mq: psycopg.Connection):
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


def test_bounded(mq: psycopg.Connection):
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
