"""Reading on a real Spark: batches, streams, restarts, and everything that may happen between two batches."""

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
from tests.spark.work import Work, is_in_order, lanes, until

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]


def test_columns(work: Work):
    """Those of the page, with the types of the page; `format("skep")` needs no registration."""
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


def test_a_batch_between_places(work: Work):
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


def test_which_queues(work: Work):
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
    ("options", "said"),
    [
        ({"startingOffset": "earliest"}, 'unknown option "startingoffset": did you mean startingOffsets?'),
        ({"startingOffsets": "group:nobody"}, "there is no such group"),
    ],
)
def test_what_is_wrong_is_said(work: Work, options: dict[str, str], said: str):
    with pytest.raises(PySparkException) as error:
        work.read("q", **options).collect()
    assert said in str(error.value)


def test_a_pattern_that_cannot_be_read(work: Work):
    work.push("q", 1)
    with pytest.raises(PySparkException, match=r'option subscribePattern is "a\(": invalid regular expression'):
        work.read(subscribePattern="a(").collect()


def test_a_stream_goes_on_where_it_was(work: Work):
    """Restart from the checkpoint: nothing twice, nothing lost, new partitions and new queues of a pattern included."""
    work.push("q1", 0, 1, 2)
    assert work.drain(subscribePattern="q.*").values == ["0", "1", "2"]
    assert work.drain(subscribePattern="q.*").values == []
    work.push("q1", 3)
    work.push("q1", "new lane", partition="later")
    work.push("q2", "new queue")
    again = work.drain(subscribePattern="q.*")
    assert sorted(again.values) == ['"new lane"', '"new queue"', "3"]
    assert again.rows[0] == ("p", 3, "3")


def test_latest_begins_with_what_comes(work: Work):
    work.push("q", "before")
    run = work.follow("q", startingOffsets="latest")
    until(lambda: run.query.lastProgress is not None, "the first batch")
    work.push("q", "after")
    assert run.await_rows(1) == [("p", 1, '"after"')]


def test_a_limit_cuts_in_the_order_of_time(work: Work):
    """At most so many rows in a batch, each lane in order, older messages first in all lanes, across restarts."""
    for lap in range(6):
        work.sql("SELECT pg_sleep(0.02)")
        for lane in "abc":
            work.push("q", *range(lap * 10, lap * 10 + 10), partition=lane)
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
    """Also when the journal is gone by then, and retention has deleted what was read."""
    for lane in "abcd":
        work.push("q", *range(50), partition=lane)
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
    """No loss and no inversion: what commits after a batch is in the next, in the order of its lane."""
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
    assert lanes(rows) == {"a": [0, 1], "b": [0, 1]}
    assert [value for lane, _, value in rows if lane == "b"] == ['"late"', "2"]


@pytest.mark.timeout(240)
def test_20_000_partitions(work: Work):
    """The checkpoint stays small, also inside a window that is cut, and a batch costs what has changed."""
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
    """A stream has read 10 of 25 messages of one lane, all of another, when retention leaves 5 of each."""
    work.push("q", *range(10), partition="lost")
    work.push("q", *range(10), partition="fine")
    assert len(work.drain("q").rows) == 20
    work.push("q", *range(10, 25), partition="lost")
    work.sql("SELECT skep.configure_queue('q', '{\"max_size\": 5}')")
    work.sql("SELECT * FROM skep.retain()")
    if not journal:
        work.sql("SELECT skep.prune_journal('0 s')")


@pytest.mark.parametrize(
    ("journal", "said"),
    [(True, "offsets 10 to 19 (10 messages)"), (False, "up to offset 19")],
    ids=["journal", "pruned"],
)
def test_retention_overtakes_a_stopped_stream(work: Work, *, journal: bool, said: str):
    """The error names what was lost, and only that; without failOnDataLoss the stream goes on behind it."""
    lose(work, journal=journal)
    with pytest.raises(StreamingQueryException) as error:
        work.drain("q")
    assert f'there is no archive: queue "q", partition "lost": {said}\n' in str(error.value)
    assert lanes(work.drain("q", failOnDataLoss="false").rows) == {"lost": [20, 21, 22, 23, 24]}
    work.push("q", 25, partition="lost")
    assert lanes(work.drain("q").rows) == {"lost": [25]}


def test_retention_behind_the_stream_is_no_loss(work: Work):
    """A queue whose retention deletes what was read, and whose journal is pruned: no false alarm."""
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
    """It shows the lag of the stream, and what is owed to it is kept; also the last batch counts."""
    work.spread("q", 30, 3)
    run = work.drain("q", groupId="g", maxOffsetsPerTrigger="12")
    assert len(run.rows) == 30
    assert lag(work) == {"p0": 0, "p1": 0, "p2": 0}
    work.push("q", *range(5), partition="p1")
    work.push("q", 0, partition="new")
    assert lag(work) == {"p0": 0, "p1": 5, "p2": 0, "new": 1}
    work.sql("SELECT skep.configure_queue('q', '{\"completed_retention_seconds\": 0}')")
    work.sql("SELECT * FROM skep.retain()")
    assert len(work.log("q")) == 6, "what the stream has not read was deleted, or what it has was kept"
    assert len(work.drain("q", groupId="g").rows) == 6
    assert set(lag(work).values()) == {0}
    assert work.sql("SELECT broken FROM skep.check_consistency() WHERE broken > 0") == []


def test_a_group_is_sought_under_a_stream(work: Work):
    """The checkpoint stays the truth: the stream neither repeats nor skips, and puts the group back where it is."""
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
    """`group:<name>`: it begins where the consumers of the group stopped, lane by lane, and goes on in its name."""
    work.spread("q", 20, 2)
    work.sql("SELECT skep.subscribe('g', 'q', mode => 'all')")
    for _ in range(2):
        ((lease,),) = work.sql("SELECT DISTINCT lease FROM skep.pop('q', 'g', batch => 4)")
        work.sql("SELECT skep.ack(%s)", lease)
    run = work.drain("q", startingOffsets="group:g", groupId="g", maxOffsetsPerTrigger="5")
    assert lanes(run.rows) == {"p0": list(range(4, 10)), "p1": list(range(4, 10))}
    assert lag(work) == {"p0": 0, "p1": 0}


def test_a_stream_from_a_time(work: Work):
    work.push("q", 0, 1)
    ((noon,),) = work.sql("SELECT clock_timestamp()")
    work.push("q", 2, 3)
    assert work.drain("q", startingOffsets="", startingTimestamp=noon.isoformat()).values == ["2", "3"]


def test_a_minimum_is_waited_for(work: Work):
    """minOffsetsPerTrigger holds small batches back, but not for longer than maxTriggerDelay."""
    run = work.follow("q", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    work.push("q", *range(9))
    until(lambda: run.behind == 9, "it to see nine")
    assert run.rows == []
    work.push("q", 9)
    assert len(run.await_rows(10)) == 10
    run.stop()
    work.push("q", 10)
    assert work.follow("q", minOffsetsPerTrigger="10", maxTriggerDelay="1s").await_rows(1) == [("p", 10, "10")]


def test_typed_payloads(work: Work):
    """A payload that does not fit the type is kept apart, dropped, or fails the query, as was asked."""
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
    """What the page shows is what works; Spark's own console prints elsewhere."""
    text = (ROOT / "examples" / example).read_text()
    assert text.strip() in (ROOT / "docs" / "spark.md").read_text()
    monkeypatch.setenv("SKEP_DATABASE_URL", work.url)
    # Spark runs already, and its workers have the environment it was started in.
    text = text.replace('.format("skep")', f'.format("skep").option("url", "{work.url}")')
    exec(compile(text.replace("checkpoints/orders", str(work.home / "orders")), example, "exec"), {})
    if example == "spark_batch.py":
        assert capsys.readouterr().out == "large orders: 33\n"
