"""The reader of a stream, without Spark: the calls that Spark makes, between random events."""

import json
import random
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from skep.errors import Conflict, DataLoss
from skep.spark import stream as module
from skep.spark.database import database
from skep.spark.options import SourceOptions, source_options
from skep.spark.schema import source_schema
from skep.spark.stream import StreamReader
from tests.spark.work import Row, is_in_order

Offset = dict[str, Any]


class Stream:
    """Does what Spark does with a reader: keeps the offset of the last batch, and sometimes creates a new reader."""

    def __init__(self, options: SourceOptions) -> None:
        self.options, self.offset, self.rows = options, None, []
        self.sizes: list[int] = []
        self.restart()

    offset: Offset | None
    rows: list[Row]

    def restart(self) -> None:
        self.reader = StreamReader(self.options, source_schema(headers=True))

    def step(self, limit: int | None = None) -> int:
        """Read a micro-batch; sometimes plan it again, as after a crash, and compare."""
        start = self.offset or self.reader.initialOffset()
        end = self.reader.latestOffset(start, ReadMaxRows(limit) if limit else ReadAllAvailable())
        rows = self._read(start, end)
        if random.random() < 0.3:
            self.restart()
            assert self._read(start, end) == rows
        self.offset, self.rows = json.loads(json.dumps(end)), self.rows + rows
        self.sizes.append(len(rows))
        return len(rows)

    def _read(self, start: Offset, end: Offset) -> list[Row]:
        tasks = self.reader.partitions(start, end)
        frames = [batch.to_pylist() for task in tasks for batch in self.reader.read(task)]
        return [(row["partition"], row["offset"], row["value"]) for frame in frames for row in frame]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch, database_url: str) -> Generator[None]:
    monkeypatch.setattr(module, "SHORTEST_PAUSE", 0)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0)
    yield
    database(database_url).close()


def options(url: str, **given: str) -> SourceOptions:
    return source_options({"url": url, "subscribe": "q", "startingOffsets": "earliest", **given}, streaming=True)


def push(connection: psycopg.Connection, partition: str, count: int) -> None:
    messages = [{"queue": "q", "partition": partition, "payload": n} for n in range(count)]
    connection.execute("SELECT skep.push(%s::jsonb)", [Jsonb(messages)])


def random_event(mq: psycopg.Connection, late: list[psycopg.Connection], stream: Stream) -> None:
    """Push, commit, prune or read. Connections that commit late have their own partitions, so that no push waits."""
    event, writer = random.random(), random.randrange(3)
    if event < 0.3:
        push(late[writer], f"late {writer} {random.randrange(3)}", random.randrange(1, 30))
    elif event < 0.4:
        random.choice([late[writer].commit, late[writer].commit, late[writer].rollback])()
    elif event < 0.6:
        push(mq, f"p{random.randrange(5)}", random.randrange(1, 30))
    elif event < 0.65:
        mq.execute("SELECT skep.prune_journal('0 s')")
    else:
        stream.step(random.choice([None, 1, 7, 25]))


@pytest.mark.parametrize("seed", range(12))
def test_random_events(database_url: str, seed: int):
    """Producers that commit late, limits, restarts, a pruned journal: each message once, each partition in order."""
    random.seed(seed)
    stream = Stream(options(database_url, groupId="g") if seed % 3 == 0 else options(database_url))
    with ExitStack() as stack:
        mq = stack.enter_context(psycopg.connect(database_url, autocommit=True))
        late = [stack.enter_context(psycopg.connect(database_url)) for _ in range(3)]
        push(mq, "first", 1)
        for _ in range(60):
            random_event(mq, late, stream)
        for each in late:
            each.commit()
        while stream.step(20):
            pass
        kept = mq.execute(
            "SELECT l.partition, m.offset, m.payload::text FROM skep.messages m "
            "JOIN skep.partition_list l USING (partition_id)"
        ).fetchall()
        assert sorted(stream.rows) == sorted(kept)
        assert is_in_order(stream.rows)
        assert len(json.dumps(stream.offset)) < 1000
        if stream.options.group:
            assert {lag for (lag,) in mq.execute("SELECT lag FROM skep.lag('g')").fetchall()} == {0}
            assert mq.execute("SELECT * FROM skep.check_consistency() WHERE broken > 0").fetchall() == []


def test_a_stream_without_new_messages_reads_only_the_journal(database_url: str):
    """Also after the journal was pruned, because of other queues: it must not query every partition each time."""
    stream = Stream(options(database_url))
    with psycopg.connect(database_url, autocommit=True) as mq:
        push(mq, "a", 3)
        stream.step()
        asked: list[str | None] = []
        window = stream.reader._log.window
        stream.reader._log.window = lambda now, since, *rest: asked.append(since) or window(now, since, *rest)  # type: ignore[method-assign]
        for _ in range(3):
            mq.execute("SELECT skep.push('other', '1'), skep.prune_journal('0 s')")
            assert stream.reader.latestOffset(stream.offset or {}, ReadAllAvailable()) == stream.offset
        assert len(asked) == len(set(asked)) == 3
        push(mq, "a", 2)
        stream.step()
        assert [offset for _, offset, _ in stream.rows] == [0, 1, 2, 3, 4]


def test_retention_between_plan_and_read(database_url: str):
    """A task that finds fewer messages than were planned names the missing ones."""
    stream = Stream(options(database_url))
    with psycopg.connect(database_url, autocommit=True) as mq:
        push(mq, "a", 10)
        start = stream.reader.initialOffset()
        (task,) = stream.reader.partitions(start, stream.reader.latestOffset(start, ReadAllAvailable()))
        mq.execute("SELECT skep.configure_queue('q', '{\"max_size\": 3}')")
        mq.execute("SELECT * FROM skep.retain()")
        with pytest.raises(DataLoss, match=r'queue "q", partition "a": offsets 0 to 6 \(7 messages\)'):
            list(stream.reader.read(task))
        lenient = StreamReader(options(database_url, failOnDataLoss="false"), source_schema(headers=True))
        (batch,) = lenient.read(task)
        assert batch["offset"].to_pylist() == [7, 8, 9]


def test_retention_deletes_messages_around_a_cut(database_url: str):
    """Messages before the cut were read, and may be deleted. Messages after it may not."""
    stream = Stream(options(database_url))
    with psycopg.connect(database_url, autocommit=True) as mq:
        push(mq, "a", 1)
        stream.step()
        for _ in range(4):
            mq.execute("SELECT pg_sleep(0.005)")
            push(mq, "a", 10)
        stream.step(20)
        assert stream.offset is not None
        assert "cut" in stream.offset
        read = len(stream.rows)
        mq.execute("SELECT skep.configure_queue('q', jsonb_build_object('max_size', 41 - %s::int))", [read])
        mq.execute("SELECT * FROM skep.retain()")
        stream.restart()
        assert stream.step(5) > 0
        mq.execute("SELECT skep.configure_queue('q', '{\"max_size\": 1}')")
        mq.execute("SELECT * FROM skep.retain()")
        stream.restart()
        with pytest.raises(DataLoss, match='partition "a"'):
            stream.step(5)


def test_a_deleted_partition_is_a_loss(database_url: str):
    stream = Stream(options(database_url))
    with psycopg.connect(database_url, autocommit=True) as mq:
        push(mq, "a", 1)
        stream.step()
        push(mq, "a", 1)
        mq.execute("SELECT skep.delete_partition('q', 'a')")
        with pytest.raises(DataLoss, match="a deleted partition"):
            stream.step()


def test_another_database_is_refused(database_url: str, new_database: Callable[..., str], template: str):
    stream = Stream(options(database_url))
    stream.step()
    stream.options = options(new_database(template))
    stream.restart()
    with pytest.raises(Conflict, match="the checkpoint belongs to database"):
        stream.step()
    database(stream.options.url).close()


def test_a_promotion_or_a_restore_is_refused(database_url: str):
    """The database has another timeline, on which transaction ids were used again."""
    stream = Stream(options(database_url))
    stream.step()
    assert stream.offset is not None
    database_, _, timeline = stream.offset["database"].rpartition("/")
    stream.offset["database"] = f"{database_}/{int(timeline) + 1}"
    stream.restart()
    with pytest.raises(Conflict, match="the checkpoint belongs to database .*/2, this is .*/1") as caught:
        stream.step()
    assert "startingTimestamp" in (caught.value.hint or "")


def test_redriven_messages(database_url: str):
    """Redriven dead letters come to the stream of their group, and to no other."""
    with psycopg.connect(database_url, autocommit=True) as mq:
        push(mq, "a", 1)
        mq.execute("SELECT skep.dead_letter(lease, 'no') FROM skep.pop('q', 'g')")
        mq.execute("SELECT * FROM skep.redrive('q', 'g')")
        plain, own = Stream(options(database_url)), Stream(options(database_url, groupId="g"))
        assert (plain.step(), own.step()) == (1, 2)


def test_partitions_below_that_of_a_cut(database_url: str):
    """Within a time slice they have been read: messages that retention deletes there are not lost."""
    stream = Stream(options(database_url))
    with psycopg.connect(database_url, autocommit=True) as mq:
        messages = [{"queue": "q", "partition": name, "payload": n} for name in "ab" for n in range(10)]
        push(mq, "a", 1)
        stream.step()
        mq.execute("SELECT skep.push(%s::jsonb)", [Jsonb(messages)])
        assert stream.step(15) == 15
        mq.execute("SELECT skep.configure_queue('q', '{\"max_size\": 1}')")
        mq.execute("SELECT * FROM skep.retain(ARRAY[1])")
        stream.restart()
        assert stream.step() == 5
        assert is_in_order(stream.rows)


def test_a_minimum_counts_everything_that_waits(database_url: str):
    stream = Stream(options(database_url, minOffsetsPerTrigger="10"))
    with psycopg.connect(database_url, autocommit=True) as mq:
        for _ in range(3):
            push(mq, "a", 3)
            assert stream.step() == 0
        push(mq, "a", 1)
        assert stream.step() == 10
        push(mq, "a", 9)
        assert stream.step() == 0
