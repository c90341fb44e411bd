"""The data source and the archive, compared to Spark's own JDBC reader, COPY and a plain Parquet write."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.background import in_background, push
from bench.report import Row, progress
from skep.pipelines import QueueScope, archive
from skep.spark import session

DRIVER = Path("/usr/share/java/postgresql.jar")
PARTITIONS = 16
ROUNDS = 3
RATE, WARM_UP = 1_000, 8.0  # messages per second; seconds until a stream is running
LATENCY = 400.0  # ms, the limit
CHUNK = 50_000
FILL = """
    SELECT count(p.ord)
    FROM (SELECT array_agg('read'::text) AS queues, array_agg('p-' || n %% %(partitions)s) AS partitions,
                 array_agg(jsonb_build_object('order', n, 'customer', md5(n::text),
                     'note', repeat(md5((n * 7)::text), 4))) AS payloads
          FROM generate_series(%(first)s::bigint, %(last)s::bigint) n) item
    CROSS JOIN LATERAL skep.push_many(queues, partitions, payloads) p
"""
# The columns of the data source, as a query for JDBC.
QUERY = """
    (SELECT q.name AS queue, p.name AS partition, m."offset", p.name AS key, m.payload::text AS value,
            m.headers::text AS headers, m.transaction_id, m.created_at AS "timestamp", m.trace_id::text AS trace_id,
            m.producer, m.partition_id
     FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id JOIN skep.queues q ON q.id = p.queue_id
     WHERE q.name = 'read') AS messages
"""


def _fill(url: str, messages: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(0, messages, CHUNK):
            last = min(first + CHUNK, messages) - 1
            connection.execute(FILL, {"partitions": PARTITIONS, "first": first, "last": last})
            progress(f"read: {last + 1:,} of {messages:,} messages")
        connection.execute("VACUUM ANALYZE")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read_all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _in_turn(*jobs: Callable[[], object]) -> list[list[float]]:
    """Return the seconds of each job, run in turn so that a disturbance affects all. The first round warms up."""
    times = [[_seconds(job) for job in jobs] for _ in range(ROUNDS + 1)]
    return [list(column) for column in zip(*times[1:], strict=True)]


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def _ours(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("skep").options(url=url, subscribe="read").load()


def _jdbc(spark: SparkSession, url: str) -> DataFrame:
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    login = f"user={quote(parts['user'])}&password={quote(parts.get('password', ''))}"
    server = f"{parts['host']}:{parts.get('port', '5432')}/{parts['dbname']}"
    with psycopg.connect(url) as connection:
        bounds = connection.execute(
            "SELECT min(partition_id), max(partition_id) + 1 FROM skep.partition_list WHERE queue = 'read'"
        )
        low, high = bounds.fetchone() or (0, 0)
    options = {
        "url": f"jdbc:postgresql://{server}?{login}", "driver": "org.postgresql.Driver", "dbtable": QUERY,
        "fetchsize": "10000", "partitionColumn": "partition_id", "lowerBound": str(low), "upperBound": str(high),
        "numPartitions": str(os.cpu_count() or 1),
    }  # fmt: skip
    return spark.read.format("jdbc").options(**options).load()


def _reading(spark: SparkSession, url: str, messages: int) -> list[Row]:
    jobs: list[Callable[[], object]] = [lambda: _read_all(_ours(spark, url)), lambda: _drain(spark, url)]
    if DRIVER.is_file():
        jobs.append(lambda: _read_all(_jdbc(spark, url)))
    ours, drained, *theirs = _in_turn(*jobs)
    jdbc = [Row("JDBC reader of Spark", messages / median(theirs[0]), "rows/s")] if theirs else []
    against = _ratio(theirs[0], ours) if theirs else None
    fast = messages / median(drained) >= 80_000  # one of the two targets is sufficient
    return [
        *jdbc,
        Row("batch read", messages / median(ours), "rows/s", "JDBC" if jdbc else "", against, at_least=0.6),
        Row(
            f"stream drain of {messages:,}", messages / median(drained), "rows/s", "batch read",
            _ratio(ours, drained), at_least=None if fast else 0.5,
        ),
    ]  # fmt: skip


def _drain(spark: SparkSession, url: str) -> None:
    with _folder() as folder:
        stream = spark.readStream.format("skep").options(url=url, subscribe="read", startingOffsets="earliest").load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()


def _latency(spark: SparkSession, url: str, seconds: float) -> list[Row]:
    """Measure the time from push to foreachBatch, while messages are pushed at a constant rate."""
    waits: list[tuple[float, float]] = []
    begin = time.time()

    def take(frame: DataFrame, _: int) -> None:
        times = [row[0] for row in frame.select(f.unix_micros("timestamp")).collect()]
        now = time.time()
        waits.extend((now - begin, now - micros / 1e6) for micros in times)

    with in_background(url, (push, "stream", RATE)), _folder() as folder:
        stream = spark.readStream.format("skep").options(url=url, subscribe="stream").load()
        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", folder).start()
        time.sleep(WARM_UP + seconds)
        query.stop()
    late = sorted(wait * 1e3 for at, wait in waits if at > WARM_UP)
    middle, worst = late[len(late) // 2], late[len(late) * 99 // 100]
    return [
        Row(f"stream, {RATE:,} messages/s, p50", middle, "ms", f"{LATENCY:g} ms", middle / LATENCY, at_most=1),
        Row(f"stream, {RATE:,} messages/s, p99", worst, "ms"),
    ]


def _writing(spark: SparkSession, url: str, messages: int) -> list[Row]:
    """Compare the sink to one COPY of the same messages into a table with a primary key."""
    fields = "'order', id, 'customer', md5(string(id)), 'note', repeat(md5(string(id * 7)), 4)"
    frame = (
        spark.range(messages)
        .selectExpr(f"concat('p-', id % {PARTITIONS}) AS partition", f"to_json(named_struct({fields})) AS value")
        .persist()
    )
    rows = "".join(f"{n},{row.partition},{_quoted(row.value)}\n" for n, row in enumerate(frame.toLocalIterator()))
    sink = frame.write.format("skep").options(url=url, queue="written").mode("append")
    ours, theirs = _in_turn(sink.save, lambda: _copy(url, rows))
    frame.unpersist()
    return [
        Row("plain COPY", messages / median(theirs), "rows/s"),
        Row("sink", messages / median(ours), "rows/s", "plain COPY", _ratio(theirs, ours), at_least=0.5),
    ]


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _copy(url: str, rows: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE copied (id bigint PRIMARY KEY, partition text, payload jsonb)")
        with connection.cursor().copy("COPY copied FROM STDIN (FORMAT csv)") as copy:
            copy.write(rows)
        connection.commit()
        connection.execute("DROP TABLE copied")


def _archiving(spark: SparkSession, url: str, messages: int) -> list[Row]:
    """Compare the archive to Parquet files that Spark writes; both read with the data source."""

    def plain() -> None:
        with _folder() as folder:
            _ours(spark, url).write.mode("overwrite").option("compression", "zstd").parquet(folder)

    def archived() -> None:
        with _folder() as folder:
            done = archive(spark, url, folder, QueueScope(("read",)))
            if done.messages != messages:
                raise RuntimeError(f"archived {done.messages:,} of {messages:,}")
        _forget_archive(url)

    ours, theirs = _in_turn(archived, plain)
    return [
        Row("plain write of Parquet", median(theirs), "s"),
        Row(f"archive of {messages:,} messages", median(ours), "s", "plain write", _ratio(ours, theirs), at_most=3),
    ]


def _forget_archive(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("TRUNCATE skep.archives, skep.archive_files, skep.archive_runs, skep.archive_marks")


@contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="skep-bench-spark-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(url: str, seconds: float, messages: int) -> list[Row]:
    if not DRIVER.is_file():
        progress("spark: no JDBC driver to compare with (Debian package libpostgresql-jdbc-java)\n")
    config = {"spark.driver.memory": "3g", **({"spark.jars": str(DRIVER)} if DRIVER.is_file() else {})}
    spark = session("bench", config=config)
    spark.sparkContext.setLogLevel("OFF")
    _fill(url, messages)
    rows = [
        *_reading(spark, url, messages),
        *_latency(spark, url, 5 * seconds),
        *_writing(spark, url, messages // 2),
        *_archiving(spark, url, messages),
    ]
    spark.stop()
    return rows
