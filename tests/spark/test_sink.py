"""Writing on a real Spark, each batch once: repeated batches, killed drivers, a database that restarts."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from skep import embedded
from skep.engine.install import install
from skep.spark.options import sink_options
from skep.spark.sink import StreamWriter
from skep.spark.source import SkepDataSource
from tests.spark.driver import COPIES, copying
from tests.spark.work import Row, Work, is_in_order, until

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]


def rows(work: Work, queue: str) -> list[Row]:
    return work.log(queue)


def write(work: Work, query: str, **options: str) -> None:
    work.spark.sql(query).write.format("skep").options(url=work.url, **options).mode("append").save()


def test_a_batch_is_written(work: Work):
    """Queue, partition, headers and all; what is null has its default."""
    write(
        work,
        """SELECT * FROM VALUES
               ('a', 'p', '{"id": 1}', map('h', 'x"y'), 't1', 'me'), ('b', NULL, '[""]', NULL, NULL, NULL)
           AS t (queue, key, value, headers, transaction_id, producer)""",
    )
    stored = work.sql(
        "SELECT l.queue, l.partition, m.payload, m.headers, m.transaction_id, m.producer "
        "FROM skep.messages m JOIN skep.partition_list l USING (partition_id) ORDER BY 1"
    )
    assert stored == [
        ("a", "p", {"id": 1}, {"h": 'x"y'}, "t1", "me"),
        ("b", "Default", [""], None, None, None),
    ]  # fmt: skip
    assert work.sql("SELECT count(*) FROM skep.sinks") == work.sql("SELECT count(*) FROM skep.sink_chunks") == [(0,)]


def test_order_is_kept_and_transaction_ids_deduplicate(work: Work):
    """Across pieces of 10,000 rows; a repeat by transaction id is not stored again."""
    query = """SELECT concat('p', id % 3) AS partition, string(id) AS value, string(id) AS transaction_id
               FROM range(0, 25000, 1, 1)"""
    write(work, query, queue="q")
    write(work, query, queue="q")
    stored = rows(work, "q")
    assert len(stored) == 25_000
    assert is_in_order(stored)
    for lane in ("p0", "p1", "p2"):
        values = [int(value) for partition, _, value in stored if partition == lane]
        assert values == sorted(values)


def test_an_import_with_a_name_is_done_once(work: Work):
    for _ in range(2):
        write(work, "SELECT '1' AS value", queue="q", sinkId="import 7")
    assert len(rows(work, "q")) == 1


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ("SELECT '1' AS payload", {"queue": "q"}, "there is no column value"),
        ("SELECT '1' AS value", {}, "nothing says which queue to write to"),
        ("SELECT 1 AS value", {"queue": "q"}, "column value is int, a message needs string"),
        ("SELECT '1' AS value, 'p' AS partiton", {"queue": "q"}, 'unknown column "partiton": did you mean partition?'),
        ("SELECT '{' AS value", {"queue": "q"}, "invalid input syntax for type json"),
        ("SELECT concat('1', char(30), '2') AS value", {"queue": "q"}, "contains the character U+001E"),
        ("SELECT CAST(NULL AS string) AS value", {"queue": "q"}, "column value is null in 1 rows"),
    ],
)
def test_what_cannot_be_written(work: Work, query: str, options: dict[str, str], said: str):
    with pytest.raises(PySparkException) as error:
        write(work, query, **options)
    assert said in str(error.value)
    assert work.sql("SELECT count(*) FROM skep.messages") == work.sql("SELECT count(*) FROM skep.sink_chunks") == [(0,)]


class ForgetfulWriter(StreamWriter):
    """Publishes the batch, and dies before Spark has noted it; but not twice."""

    def commit(self, messages: object, batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)  # type: ignore[arg-type]
        mark = Path(str(self._options.sink))
        if batchId == 1 and not mark.exists():
            mark.touch()
            raise RuntimeError("died after publishing")


class ForgetfulSource(SkepDataSource):
    @classmethod
    def name(cls) -> str:
        return "skep_forgetful"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        return ForgetfulWriter(sink_options(self.options), schema)


def test_a_batch_that_was_published_is_not_published_again(work: Work):
    """Killed between push and commit: Spark runs the batch once more, and nothing comes twice."""
    work.spark.dataSource.register(ForgetfulSource)
    work.spread("q", 50, 3)
    checkpoint, mark = str(work.home / "checkpoint"), str(work.home / "mark")
    query = (
        copying(work.spark, work.url, checkpoint, "skep_forgetful").option("sinkId", mark).trigger(availableNow=True)
    )
    with pytest.raises(StreamingQueryException, match="died after publishing"):
        query.start().awaitTermination()
    assert len(rows(work, "copy")) == 40
    query.start().awaitTermination()
    assert rows(work, "copy") == rows(work, "q")
    assert work.sql("SELECT last_batch, messages FROM skep.sinks") == [(2, 50)]
    assert work.sql("SELECT count(*) FROM skep.sink_chunks") == [(0,)]


def test_a_sink_belongs_to_one_query(work: Work):
    """Another query counts its batches anew: they would be taken for repetitions, and lost."""
    work.push("q", 1)
    for number, said in enumerate(("", "belongs to another query")):
        writer = copying(work.spark, work.url, str(work.home / str(number))).option("sinkId", "mine")
        query = writer.trigger(availableNow=True).start()
        if said:
            with pytest.raises(StreamingQueryException, match=said):
                query.awaitTermination()
        else:
            query.awaitTermination()


@contextmanager
def driver(url: str, checkpoint: Path) -> Generator[Callable[[], None]]:
    """Run a driver in a process group of its own; gives what kills all of it, as the kernel would."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", url, str(checkpoint)], cwd=ROOT, start_new_session=True
    )

    def kill() -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    try:
        yield kill
    finally:
        if process.poll() is None:
            kill()


def test_a_killed_driver(work: Work):
    """One stream is killed between batches, one inside a batch, which waits for a lane: nothing lost, nothing twice."""
    work.spread("q", 60, 3)
    work.spread("r", 60, 3)
    work.push("copy of r", "first", partition="p1")
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(work.url) as holder:
        holder.execute("SELECT skep.push('copy of r', '\"held\"', 'p1')")
        with driver(work.url, work.home) as kill:
            until(lambda: len(rows(work, "copy")) == 60 and work.sql(blocked) != [(0,)], "both to be so far")
            kill()
        holder.rollback()  # and what the dead driver had asked for is done: Spark does not know
    for queue, copy in COPIES.items():
        work.spread(queue, 30, 3)
        copying(work.spark, work.url, f"{work.home}/{queue}", queue=queue).trigger(
            availableNow=True
        ).start().awaitTermination()
        copied = [(lane, value) for lane, _, value in rows(work, copy) if value != '"first"']
        assert copied == [(lane, value) for lane, _, value in rows(work, queue)]
    assert work.sql("SELECT count(*) FROM skep.sink_chunks") == [(0,)]


@pytest.fixture
def server(data_dir: Path) -> Generator[embedded.EmbeddedPostgres]:
    with embedded.start(data_dir, settings={"fsync": "off", "shared_preload_libraries": ""}) as started:
        install(started.url)
        yield started


def restart(data_dir: Path, url: str) -> None:
    """End the server without a word; its supervisor starts it again."""
    pid = (data_dir / "pgdata" / "postmaster.pid").read_text().split()[0]
    os.kill(int(pid), signal.SIGKILL)

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return (data_dir / "pgdata" / "postmaster.pid").read_text().split()[0] != pid

    until(answers, "the supervisor to start the database again")


def test_the_database_restarts(server: embedded.EmbeddedPostgres, data_dir: Path, work_on: Callable[[str], Work]):
    """A stream from queue to queue goes on by itself, and has lost and doubled nothing."""
    work = work_on(server.url)
    checkpoint = str(work.home / f"checkpoint {uuid4()}")
    work.spread("q", 50, 5)
    query = copying(work.spark, work.url, checkpoint).start()
    until(lambda: len(rows(work, "copy")) == 50, "the first messages to be copied")
    restart(data_dir, server.url)
    work.connection.close()
    work.connection = psycopg.connect(server.url, autocommit=True)
    work.spread("q", 50, 5)
    until(lambda: len(rows(work, "copy")) >= 100 or not query.isActive, "the others to be copied")
    assert query.exception() is None
    query.stop()
    assert rows(work, "copy") == rows(work, "q")
