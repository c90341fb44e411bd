"""Analytics of a known workload: the results are compared with SQL and with numbers counted by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.conninfo import make_conninfo

from skep.errors import ConfigError, NotFound
from skep.pipelines import QueueScope, TimeRange, analytics
from skep.pipelines.analysing import MEASURES, Analysed, Analysis
from tests.engine.verbs import ack, call, configure, pass_time, pop
from tests.spark.archiver import archive_of
from tests.spark.work import Work
from tests.unit.test_report import HOSTILE, check

pytestmark = pytest.mark.timeout(600)
Q = "orders"
Row = dict[str, Any]


def analyse(work: Work, *queues: str, **options: Any) -> Analysed:
    return analytics(work.spark, work.url, work.home / "reports", QueueScope(queues) if queues else None, **options)


def table(done: Analysed, name: str) -> list[Row]:
    return pq.read_table(Path(done.tables) / f"{name}.parquet").to_pylist()


def numbers(done: Analysed, name: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in table(done, name)]


def create_workload(connection: psycopg.Connection, push: Any, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Create a workload of two groups on two partitions.

    Group a completes the four messages of x 18 s after their push and the two of y 8 s after theirs; its leases take
    3 s. Later six more are pushed to x. Group b completes the first two of x, dead-letters the next two with similar
    errors, and does not lease the rest.
    """
    configure(connection, Q, lease_log_seconds=86_400, retry_limit=0, retry_delay=0)
    for group in ("a", "b"):
        call(connection, "subscribe", group_name=group, queue=Q, mode="all")
    push(Q, *range(4), partition="x")
    pass_time(connection, 10)
    push(Q, *range(2), partition="y")
    pass_time(connection, 5)
    deliveries = pop(connection, Q, "a", partitions=2)
    pass_time(connection, 3)
    ack(connection, deliveries)
    call(connection, "sample", not_within="0 s")
    pass_time(connection, 100)
    meanwhile()
    push(Q, *range(6), partition="x")
    ack(connection, pop(connection, Q, "b", batch=2, partition="x"))
    for number in (1, 22):
        error = f"order {number} is not at 10.0.0.{number}:5432"
        call(connection, "fail", lease=pop(connection, Q, "b", batch=1, partition="x")[0].lease, error=error)
    call(connection, "sample", not_within="0 s")


@pytest.fixture
def workload(work: Work) -> Work:
    create_workload(work.connection, work.push)
    return work


TIMES = """
    SELECT g.group_name, count(*), percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (
        ORDER BY extract(epoch FROM g.finished_at - m.created_at)::float)
    FROM skep.lease_log g
    CROSS JOIN LATERAL generate_series(g.first_offset, g.end_offset - 1) AS o
    JOIN skep.messages m ON m.partition_id = g.partition_id AND m."offset" = o
    WHERE NOT EXISTS (SELECT FROM skep.dead_letters d WHERE d.partition_id = m.partition_id AND d."offset" = o
                                                        AND d.group_name = g.group_name)
    GROUP BY 1 ORDER BY 1
"""
PUSHED = """
    SELECT date_bin(make_interval(secs => %s), created_at, 'epoch'), count(*) FROM skep.messages GROUP BY 1 ORDER BY 1
"""
PENDING = """
    SELECT count(*), count(*) FILTER (WHERE pending_groups = '{}'), count(*) FILTER (WHERE pending_groups <> '{}')
    FROM skep.partition_list l CROSS JOIN LATERAL skep.message_status(l.queue, l.partition)
"""


def test_the_results_match_sql(workload: Work):
    done = analyse(workload, Q)
    assert (done.queues, done.messages) == ([Q], 12)
    times = sorted(numbers(done, "time_in_queue", "group_name", "messages", "p50", "p95", "p99"))
    expected = workload.sql(TIMES)
    assert [row[:2] for row in times] == [row[:2] for row in expected] == [("a", 6), ("b", 2)]
    assert [row[2:] for row in times] == [pytest.approx(row[2]) for row in expected]
    (a,) = [row for row in table(done, "time_in_queue") if row["group_name"] == "a"]
    assert [round(a[name]) for name in ("p50", "p95", "most", "waited_p50", "held_p50")] == [18, 18, 18, 15, 3]

    step = 1  # the workload takes less than two minutes
    assert numbers(done, "throughput", "bucket", "messages") == workload.sql(PUSHED, step)
    ((messages, complete, pending),) = workload.sql(PENDING)
    fanout = table(done, "fanout")
    sums = [sum(row[name] for row in fanout) for name in ("messages", "done_by_all", "owed", "for_nobody", "gone")]
    assert sums == [messages, complete, pending, 0, 0] == [12, 4, 8, 0, 0]
    groups = numbers(done, "fanout_groups", "group_name", "completed", "owed", "behind", "share")
    assert groups == [("a", 6, 6, 6, 0.5), ("b", 4, 8, 8, pytest.approx(1 / 3))]
    assert numbers(done, "lag", "group_name", "messages") == [("a", 0), ("a", 6), ("b", 6), ("b", 8)]
    assert [row[0] for row in numbers(done, "consumption", "messages")] == [0, 4]
    last_group = table(done, "fanout_time")
    assert [(row["messages"], round(row["p50"])) for row in last_group] == [(2, 118)]

    (error,) = table(done, "errors")
    assert (error["fingerprint"], error["letters"], error["group_name"]) == ("order # is not at <address>", 2, "b")
    assert error["example"] == "order 22 is not at 10.0.0.22:5432"
    deliveries = numbers(done, "deliveries", "group_name", "leases", "messages", "failed", "expired")
    assert deliveries == [("a", 2, 6, 0, 0), ("b", 3, 4, 2, 0)]
    ((partitions, largest, share, skew, gini),) = numbers(
        done, "skew", "partitions", "largest_partition", "largest_share", "skew", "gini"
    )
    assert (partitions, largest) == (2, "x")
    assert (share, skew, gini) == pytest.approx((10 / 12, 10 / 6, 1 / 3))
    hot = numbers(done, "hot_partitions", "rank", "partition", "messages", "busiest_per_second")
    assert hot == [(1, "x", 10, 6.0), (2, "y", 2, 2.0)]
    assert done.findings == ["2 messages became dead letters. All for group b on orders: order # is not at <address>"]
    assert "2 messages became dead letters" in check(Path(done.report).read_text()).words
    assert {path.stem for path in Path(done.tables).iterdir()} == {*MEASURES, "groups"}
    assert Path(done.report).name == f"{Path(done.tables).name}.html"


MANIFEST = ("archives", "archive_files", "archive_runs", "archive_marks")


def test_archive_and_log_give_the_same_results_as_the_log(work: Work, monkeypatch: pytest.MonkeyPatch):
    create_workload(work.connection, work.push, lambda: archive_of(work, Q, file_messages=4))
    for name in MANIFEST:
        work.sql(f"CREATE TABLE kept_{name} AS TABLE skep.{name}")
    work.sql(f"TRUNCATE {', '.join(f'skep.{name}' for name in MANIFEST)}")
    alone = analyse(work, Q)
    for name in MANIFEST:
        work.sql(f"INSERT INTO skep.{name} OVERRIDING SYSTEM VALUE TABLE kept_{name}")
    configure(work.connection, Q, retain_until_archived=True, retention_seconds=60)
    assert sum(row.end_offset - row.first_offset for row in call(work.connection, "retain")) == 6
    tail = Analysis._tail

    def archive_meanwhile(analysis: Analysis):
        """Archive messages that were already read from the log."""
        found = tail(analysis).localCheckpoint(eager=True)
        assert (found.count(), archive_of(work, Q).messages) == (6, 6)
        return found

    monkeypatch.setattr(Analysis, "_tail", archive_meanwhile)
    both = analyse(work, Q)
    assert work.sql("SELECT count(*) FROM skep.messages") == [(6,)]
    assert both.messages == alone.messages == 12
    for name in MEASURES:
        if not name.startswith("fanout"):  # retention has moved a group meanwhile
            assert table(both, name) == table(alone, name), name


def test_a_time_range(workload: Work):
    archive_of(workload, Q)
    ((middle,),) = workload.sql("SELECT max(created_at) FROM skep.messages")
    late = analyse(workload, Q, time_range=TimeRange(since=middle))
    early = analyse(workload, Q, time_range=TimeRange(until=middle))
    assert (late.messages, early.messages) == (6, 6)
    assert numbers(late, "time_in_queue", "group_name", "messages") == [("b", 2)]
    assert numbers(early, "errors", "letters") == []


def test_without_the_messages_times_come_from_their_leases(work: Work):
    """Retention has deleted them, and there is no archive: their push times are interpolated."""
    connection = work.connection
    configure(connection, Q, lease_log_seconds=86_400, completed_retention_seconds=0)
    for number in range(5):
        work.push(Q, number)
        pass_time(connection, 10)
    ack(connection, pop(connection, Q))
    call(connection, "retain")
    assert work.sql("SELECT count(*) FROM skep.messages") == [(0,)]
    done = analyse(work)
    ((messages, median, most),) = numbers(done, "time_in_queue", "messages", "p50", "most")
    assert (done.messages, messages, round(median), round(most)) == (0, 5, 30, 50)


def test_hostile_names_and_errors_are_inert(work: Work):
    hostile = HOSTILE.replace("\x00", "")
    names = [hostile, "a,b", "c*|.*", "100% {x} :step"]
    for name in names:
        configure(work.connection, name, lease_log_seconds=60, retry_limit=0)
        work.push(name, 1, 2, partition=name)
        ack(work.connection, pop(work.connection, name, name, batch=1))
        call(work.connection, "fail", lease=pop(work.connection, name, name)[0].lease, error=f"{hostile} {name}")
    call(work.connection, "sample", not_within="0 s")
    archive_of(work, *names[:2])
    done = analyse(work, *names)
    assert sorted(numbers(done, "skew", "queue", "messages")) == sorted((name, 2) for name in names)
    assert sum(row["letters"] for row in table(done, "errors")) == 4
    page = check(Path(done.report).read_text())
    assert "window.pwned" in page.words
    assert analyse(work, "a,b").messages == 2


def test_an_empty_queue(work: Work):
    configure(work.connection, "idle")
    done = analyse(work, "idle")
    assert (done.queues, done.messages, done.findings) == (["idle"], 0, [])
    assert "There are no messages" in check(Path(done.report).read_text()).words
    assert all(table(done, name) == [] for name in MEASURES)
    with pytest.raises(NotFound, match='queue "nowhere" does not exist'):
        analyse(work, "nowhere")


def test_a_missing_archive(work: Work):
    work.push(Q, 1)
    archive_of(work, Q)
    with pytest.raises(ConfigError, match="archive cannot be read") as caught:
        analyse(work, Q, archive=str(work.home / "elsewhere"))
    assert caught.value.hint == "If the files were moved, give their location."
    assert not (work.home / "reports").exists()


def test_expired_leases_and_tombstones(work: Work):
    """Messages completed in a lease that expired count once; deleted messages count as pushed."""
    connection = work.connection
    configure(connection, Q, lease_log_seconds=60)
    work.push(Q, *range(4))
    deliveries = pop(connection, Q, batch=3, lease_time=0.5)
    call(connection, "ack", lease=deliveries[0].lease, id=deliveries[0].id)
    call(connection, "delete_message", id=deliveries[2].id)
    work.sql("SELECT pg_sleep(0.6)")
    call(connection, "expire_leases")
    while rest := pop(connection, Q):
        ack(connection, rest)
    done = analyse(work, Q)
    ((leases, expired),) = numbers(done, "deliveries", "leases", "expired")
    assert (expired, leases > 1, done.messages) == (1, True, 4)
    assert [row["messages"] for row in table(done, "time_in_queue")] == [4]
    assert any("expired: consumers" in text for text in done.findings)
    assert work.sql("SELECT sum(messages) FROM skep.queue_status()") == [(4,)]


def test_skep_admin_is_sufficient(workload: Work):
    workload.sql("DROP ROLE IF EXISTS analyst; CREATE ROLE analyst LOGIN PASSWORD 'x' IN ROLE skep_admin")
    try:
        url = make_conninfo(workload.url, user="analyst", password="x")
        assert analytics(workload.spark, url, workload.home / "reports").messages == 12
    finally:
        workload.sql("DROP ROLE analyst")
