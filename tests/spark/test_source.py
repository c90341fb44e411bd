"""Reading on a real Spark: batches, streams, restarts, and events between two batches."""

import json
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import MapType, StringType

from skep.spark import parse
from skep.spark.options import SOURCE
from tests.spark.work import Work, by_partition, is_in_order, until

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]


def test_columns(work: Work):
    """The columns and types of the documentation; `format("skep")` needs no registration."""
    work.sql(
        "SELECT skep.push('orders', '{\"id\": 1}', 'p', 't1', '{\"a\": \"b\", \"n\": [1, null]}', "
        "'00000000-0000-0000-0000-000000000007', 'me')"
    )
    frame = work.read("orders")
    assert frame.schema["headers"].dataType == MapType(StringType(), StringType())
    (row,) = frame.collect()
    assert row.asDict() | {"timestamp": None} == {
        "queue": "orders", "partition": "p", "offset": 0, "key": "p", "value": '{"id": 1}',
        "headers": {"a": "b", "n": "[1,null]"}, "transaction_id": "t1", "timestamp": None,
        "trace_id": "00000000-0000-0000-0000-000000000007", "producer": "me", "partition_id": 1,
    }  # fmt: skip
    ((stored,),) = work.sql("SELECT created_at FROM skep.messages")
    assert row.timestamp.replace(tzinfo=UTC) == stored
    assert "headers" not in work.read("orders", includeHeaders="false").columns
    reader = work.spark.read.format("skep").options(url=work.url, subscribe="orders")
    assert reader.schema("offset bigint, partition string").load().collect() == [(0, "p")]


def test_start_and_end_of_a_batch(work: Work):
    work.push("q", 0, 1, 2, partition="a")
    ((noon,),) = work.sql("SELECT clock_timestamp()")
    work.push("q", 3, 4, partition="a")
    work.push("q", 10, 11, partition="b")

    def values(**options: str) -> list[int]:
        return sorted(int(row.value) for row in work.read("q", **options).collect())

    assert values() == [0, 1, 2, 3, 4, 10, 11]
    assert values(startingTimestamp=noon.isoformat()) == [3, 4, 10, 11]
    assert values(endingTimestamp=noon.isoformat()) == [0, 1, 2]
    assert (
        values(startingTimestamp="0", endingTimestamp=str(int(datetime.now(UTC).timestamp() * 1000) + 60_000))
        == values()
    )
    assert values(startingOffsets='{"q": {"a": 1, "b": -1}}') == [1, 2, 3, 4]
    assert values(endingOffsets='{"q": {"a": 2}}') == [0, 1, 10, 11]
    assert values(startingOffsets='{"q": {"a": 1, "b": 1}}', endingOffsets='{"q": {"a": 4, "b": 1}}') == [1, 2, 3]
    assert values(startingOffsets="latest") == []
    assert values(minPartitions="3") == values(maxRecordsPerPartition="2") == values()
    assert work.read("q", maxRecordsPerPartition="2").rdd.getNumPartitions() == 4


def test_scope(work: Work):
    for queue in ("shop.orders", "shop.refunds", "shopping", "other.orders"):
        work.push(queue, queue)

    def queues(**options: str) -> set[str]:
        return {row.queue for row in work.read(**options).collect()}

    assert queues(subscribe="shop.orders, shopping, none") == {"shop.orders", "shopping"}
    assert queues(subscribePattern=r"shop\..*") == {"shop.orders", "shop.refunds"}
    assert queues(subscribePattern="shop") == set()
    assert queues(namespace="shop") == {"shop.orders", "shop.refunds"}
    assert queues(namespace="other", task="orders") == {"other.orders"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, 'unknown option "startingoffset": did you mean startingOffsets?'),
        ({"startingOffsets": "group:missing"}, "there is no such group"),
    ],
)
def test_wrong_options(work: Work, options: dict[str, str], message: str):
    with pytest.raises(PySparkException) as error:
        work.read("q", **options).collect()
    assert message in str(error.value)


def test_an_invalid_pattern(work: Work):
    work.push("q", 1)
    with pytest.raises(PySparkException, match=r'option subscribePattern is "a\(": invalid regular expression'):
        work.read(subscribePattern="a(").collect()


def test_a_stream_continues_after_a_restart(work: Work):
    """Each message once, also of new partitions and of new queues of a pattern."""
    work.push("q1", 0, 1, 2)
    assert work.drain(subscribePattern="q.*").values == ["0", "1", "2"]
    assert work.drain(subscribePattern="q.*").values == []
    work.push("q1", 3)
    work.push("q1", "new partition", partition="later")
    work.push("q2", "new queue")
    again = work.drain(subscribePattern="q.*")
    assert sorted(again.values) == ['"new partition"', '"new queue"', "3"]
    assert again.rows[0] == ("p", 3, "3")


def test_latest_starts_with_new_messages(work: Work):
    work.push("q", "before")
    run = work.follow("q", startingOffsets="latest")
    until(lambda: run.query.lastProgress is not None, "the first batch")
    work.push("q", "after")
    assert run.await_rows(1) == [("p", 1, '"after"')]


def test_a_limit_cuts_in_the_order_of_time(work: Work):
    """The limit holds, each partition is in order, and older messages of all partitions come first."""
    for lap in range(6):
        work.sql("SELECT pg_sleep(0.02)")
        for partition in "abc":
            work.push("q", *range(lap * 10, lap * 10 + 10), partition=partition)
    first = work.drain("q", maxOffsetsPerTrigger="25")
    sizes = [len(rows) for rows in first.batches.values()]
    assert max(sizes) <= 25
    assert sum(sizes) == 180
    assert is_in_order(first.rows)
    laps = [int(value) // 10 for value in first.values]
    assert all(max(laps[: n + 1]) - lap <= 1 for n, lap in enumerate(laps)), laps
    assert first.behind == 0
    assert work.drain("q", maxOffsetsPerTrigger="25").values == []


def test_a_cut_survives_a_restart(work: Work):
    """Also after the journal was pruned."""
    for partition in "abcd":
        work.push("q", *range(50), partition=partition)
    run = work.follow("q", maxOffsetsPerTrigger="30")
    run.await_rows(60)
    run.query.stop()
    seen = run.rows
    assert "cut" in json.loads(work.offsets()[-1])
    work.sql("SELECT skep.prune_journal('0 s')")
    work.push("q", 50, partition="a")
    rest = work.drain("q", maxOffsetsPerTrigger="40")
    everything = {**run.batches, **rest.batches}
    rows = [row for batch in sorted(everything) for row in everything[batch]]
    assert len(rows) == len(set(rows)) == 201
    assert is_in_order(rows)
    assert set(seen) <= set(rows)


def test_producers_that_commit_late(work: Work):
    """Messages that are committed after a batch are in the next one, in the order of their partition."""
    work.push("q", 0, partition="a")
    run = work.follow("q")
    run.await_rows(1)
    with psycopg.connect(work.url) as late:
        late.execute("SELECT skep.push('q', '\"late\"', 'b')")
        work.push("q", 1, partition="a")
        run.await_rows(2)
        late.commit()
    work.push("q", 2, partition="b")
    rows = run.await_rows(4)
    assert by_partition(rows) == {"a": [0, 1], "b": [0, 1]}
    assert [value for partition, _, value in rows if partition == "b"] == ['"late"', "2"]


@pytest.mark.timeout(240)
def test_20_000_partitions(work: Work):
    """The checkpoint stays small, also with a cut, and the cost of a batch depends on its changes."""
    work.spread("q", 40_000, 20_000)
    run = work.drain("q", maxOffsetsPerTrigger="15000")
    assert len(run.rows) == 40_000
    assert is_in_order(run.rows)
    work.push("q", 1, partition="p7")
    again = work.drain("q")
    assert again.rows == [("p7", 2, "1")]
    sizes = [len(offset) for offset in work.offsets()]
    assert len(sizes) >= 4
    assert max(sizes) < 512


def lose(work: Work, *, journal: bool) -> None:
    """A stream has read 10 of 25 messages of one partition, and all of another; then retention leaves 5 of each."""
    work.push("q", *range(10), partition="lost")
    work.push("q", *range(10), partition="fine")
    assert len(work.drain("q").rows) == 20
    work.push("q", *range(10, 25), partition="lost")
    work.sql("SELECT skep.configure_queue('q', '{\"max_size\": 5}')")
    work.sql("SELECT * FROM skep.retain()")
    if not journal:
        work.sql("SELECT skep.prune_journal('0 s')")


@pytest.mark.parametrize(
    ("journal", "message"),
    [(True, "offsets 10 to 19 (10 messages)"), (False, "up to offset 19")],
    ids=["journal", "pruned"],
)
def test_retention_deletes_unread_messages(work: Work, *, journal: bool, message: str):
    """The error names these messages, and no others; without failOnDataLoss the stream skips them."""
    lose(work, journal=journal)
    with pytest.raises(StreamingQueryException) as error:
        work.drain("q")
    assert f'no archive is set: queue "q", partition "lost": {message}\n' in str(error.value)
    assert by_partition(work.drain("q", failOnDataLoss="false").rows) == {"lost": [20, 21, 22, 23, 24]}
    work.push("q", 25, partition="lost")
    assert by_partition(work.drain("q").rows) == {"lost": [25]}


def test_retention_deletes_read_messages(work: Work):
    """That is no data loss, also after the journal was pruned."""
    work.push("q", *range(10))
    work.drain("q")
    work.sql("SELECT skep.configure_queue('q', '{\"max_size\": 1}')")
    work.sql("SELECT * FROM skep.retain()")
    work.push("q", 10)
    work.sql("SELECT skep.prune_journal('0 s')")
    assert work.drain("q").values == ["10"]


def test_a_deleted_message_is_not_read(work: Work):
    work.push("q", 0, 1, 2)
    work.sql("SELECT skep.delete_message(skep.message_id(1, 1))")
    assert work.drain("q").values == ["0", "2"]


def test_two_streams_at_once(work: Work):
    first, second = work.follow("q", checkpoint="one"), work.follow("q", checkpoint="two", maxOffsetsPerTrigger="7")
    for lap in range(3):
        work.spread("q", 30, 5)
        first.await_rows(30 * (lap + 1))
    second.await_rows(90)
    assert sorted(first.rows) == sorted(second.rows) == sorted(work.log("q"))
    assert is_in_order(first.rows)
    assert is_in_order(second.rows)


def lag(work: Work, group: str = "g") -> dict[str, int]:
    return dict(work.sql("SELECT partition, lag FROM skep.lag(%s)", group))


def test_a_group_follows(work: Work):
    """Its lag is that of the stream, also after the last batch, and retention keeps its pending messages."""
    work.spread("q", 30, 3)
    run = work.drain("q", groupId="g", maxOffsetsPerTrigger="12")
    assert len(run.rows) == 30
    assert lag(work) == {"p0": 0, "p1": 0, "p2": 0}
    work.push("q", *range(5), partition="p1")
    work.push("q", 0, partition="new")
    assert lag(work) == {"p0": 0, "p1": 5, "p2": 0, "new": 1}
    work.sql("SELECT skep.configure_queue('q', '{\"completed_retention_seconds\": 0}')")
    work.sql("SELECT * FROM skep.retain()")
    assert len(work.log("q")) == 6, "unread messages were deleted, or read messages were kept"
    assert len(work.drain("q", groupId="g").rows) == 6
    assert set(lag(work).values()) == {0}
    assert work.sql("SELECT broken FROM skep.check_consistency() WHERE broken > 0") == []


def test_seek_of_a_group_that_follows_a_stream(work: Work):
    """The stream continues from its checkpoint, and moves the group back to its position."""
    work.spread("q", 20, 2)
    run = work.follow("q", groupId="g")
    run.await_rows(20)
    until(lambda: lag(work) == {"p0": 0, "p1": 0}, "the group to follow")
    for position in ("beginning", "end"):
        work.sql("SELECT skep.seek('g', 'q', %s)", position)
        before = len(run.rows)
        work.push("q", "more", partition="p0")
        run.await_rows(before + 1)
        until(lambda: lag(work) == {"p0": 0, "p1": 0}, f"the group to come back from the {position}")
    assert sorted(run.rows) == sorted(work.log("q"))


def test_a_stream_takes_over_from_a_group(work: Work):
    """`group:<name>`: it starts at the cursors of the group, and moves them."""
    work.spread("q", 20, 2)
    work.sql("SELECT skep.subscribe('g', 'q', mode => 'all')")
    for _ in range(2):
        ((lease,),) = work.sql("SELECT DISTINCT lease FROM skep.pop('q', 'g', batch => 4)")
        work.sql("SELECT skep.ack(%s)", lease)
    run = work.drain("q", startingOffsets="group:g", groupId="g", maxOffsetsPerTrigger="5")
    assert by_partition(run.rows) == {"p0": list(range(4, 10)), "p1": list(range(4, 10))}
    assert lag(work) == {"p0": 0, "p1": 0}


def test_a_stream_from_a_time(work: Work):
    work.push("q", 0, 1)
    ((noon,),) = work.sql("SELECT clock_timestamp()")
    work.push("q", 2, 3)
    assert work.drain("q", startingOffsets="", startingTimestamp=noon.isoformat()).values == ["2", "3"]


def test_a_stream_waits_for_a_minimum(work: Work):
    """minOffsetsPerTrigger holds small batches back, but not for longer than maxTriggerDelay."""
    run = work.follow("q", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    work.push("q", *range(9))
    until(lambda: run.behind == 9, "nine messages to be counted")
    assert run.rows == []
    work.push("q", 9)
    assert len(run.await_rows(10)) == 10
    run.stop()
    work.push("q", 10)
    assert work.follow("q", minOffsetsPerTrigger="10", maxTriggerDelay="1s").await_rows(1) == [("p", 10, "10")]


def test_typed_payloads(work: Work):
    """A payload that does not match the schema is kept in another column, dropped, or fails the query."""
    work.push("q", {"id": 1, "total": 9.5}, {"id": "one"}, [1], {"id": 2, "total": 1.5, "more": True})
    schema = "id int, total double"
    kept = parse(work.read("q"), schema).orderBy("offset").collect()
    assert [row.data and row.data.asDict() for row in kept] == [
        {"id": 1, "total": 9.5}, None, None, {"id": 2, "total": 1.5},
    ]  # fmt: skip
    assert [row.malformed for row in kept] == [None, '{"id": "one"}', "[1]", None]
    assert [row.data.id for row in parse(work.read("q"), schema, malformed="drop").orderBy("offset").collect()] == [
        1,
        2,
    ]
    with pytest.raises(Py4JJavaError, match="MALFORMED_RECORD"):
        parse(work.read("q"), schema, malformed="fail").collect()


def test_every_option_is_tested_somewhere():
    tests = Path(__file__).read_text() + (Path(__file__).parents[1] / "unit" / "test_spark_options.py").read_text()
    assert [name for name in SOURCE if name not in tests] == []


@pytest.mark.parametrize("example", ["spark_stream.py", "spark_batch.py"])
def test_examples(work: Work, example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The examples of the documentation run; Spark's own console prints elsewhere."""
    text = (ROOT / "examples" / example).read_text()
    assert text.strip() in (ROOT / "docs" / "spark.md").read_text()
    monkeypatch.setenv("SKEP_DATABASE_URL", work.url)
    # Spark is running, and its workers have the environment in which it was started.
    text = text.replace('.format("skep")', f'.format("skep").option("url", "{work.url}")')
    exec(compile(text.replace("checkpoints/orders", str(work.home / "orders")), example, "exec"), {})
    if example == "spark_batch.py":
        assert capsys.readouterr().out == "large orders: 33\n"
