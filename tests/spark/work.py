"""Spark in tests: streams that are drained or followed, and a database to push to."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.types.json import Jsonb
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from skep.spark.database import database

FAST = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
}
Row = tuple[str, int, str]  # partition, offset, value


def until(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    """Wait until the condition holds; Spark is slow."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {seconds:.0f} s: {what}")
        time.sleep(0.02)


class RunningQuery:
    """A running query, and the rows of its batches; a repeated batch replaces the first attempt."""

    def __init__(self, frame: DataFrame, checkpoint: Path, trigger: dict[str, Any]) -> None:
        self.batches: dict[int, list[Row]] = {}
        writer = frame.writeStream.foreachBatch(self._collect).option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = writer.trigger(**trigger).start()

    def _collect(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [(row.partition, row.offset, row.value) for row in frame.collect()]

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def values(self) -> list[str]:
        return [value for _, _, value in self.rows]

    @property
    def behind(self) -> int | None:
        """The number of messages that the stream still has to read, according to its progress."""
        progress = self.query.lastProgress
        newest = progress["sources"][0]["latestOffset"] if progress else None
        return None if newest is None else json.loads(newest)["behind"]

    def await_rows(self, count: int) -> list[Row]:
        until(lambda: len(self.rows) >= count or not self.query.isActive, f"{count} rows")
        if error := self.query.exception():
            raise error
        return self.rows

    def stop(self) -> None:
        self.query.processAllAvailable()
        self.query.stop()


class Work:
    """Spark and a database."""

    def __init__(self, spark: SparkSession, url: str, home: Path) -> None:
        self.spark, self.url, self.home = spark, url, home
        self.connection = psycopg.connect(url, autocommit=True)
        self.runs: list[RunningQuery] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for run in self.runs:
            if run.query.isActive:
                run.query.stop()
        self.connection.close()
        database(self.url).close()

    def push(self, queue: str, *payloads: object, partition: str = "p") -> None:
        messages = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
        self.sql("SELECT skep.push(%s::jsonb)", Jsonb(messages))

    def spread(self, queue: str, count: int, partitions: int) -> None:
        """Push numbers to partitions, round-robin."""
        self.sql(
            "SELECT count(*) FROM skep.push((SELECT jsonb_agg(jsonb_build_object('queue', %s::text, "
            "'partition', 'p' || n %% %s, 'payload', n)) FROM generate_series(0, %s - 1) n))",
            queue, partitions, count,
        )  # fmt: skip

    def sql(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode(), arguments)
        return cursor.fetchall() if cursor.description else []

    def log(self, queue: str) -> list[Row]:
        """Return the messages of a queue, read by SQL."""
        return self.sql(
            "SELECT l.partition, m.offset, m.payload::text FROM skep.messages m "
            "JOIN skep.partition_list l USING (partition_id) "
            "WHERE l.queue = %s ORDER BY l.partition, m.offset", queue,
        )  # fmt: skip

    def read(self, queue: str | None = None, **options: str) -> DataFrame:
        names = {"subscribe": queue} if queue else {}
        return self.spark.read.format("skep").options(url=self.url, **names, **options).load()

    def stream(self, queue: str | None = None, **options: str) -> DataFrame:
        names = {"subscribe": queue} if queue else {}
        given = {"startingOffsets": "earliest", **options}
        given = {name: value for name, value in given.items() if value}
        return self.spark.readStream.format("skep").options(url=self.url, **names, **given).load()

    def drain(self, queue: str | None = None, *, checkpoint: str = "checkpoint", **options: str) -> RunningQuery:
        """Read the available messages, and stop."""
        run = self._run(self.stream(queue, **options), checkpoint, {"availableNow": True})
        run.query.awaitTermination()
        return run

    def follow(self, queue: str | None = None, *, checkpoint: str = "checkpoint", **options: str) -> RunningQuery:
        """Read until the end of the test."""
        return self._run(self.stream(queue, **options), checkpoint, {"processingTime": "0 seconds"})

    def _run(self, frame: DataFrame, checkpoint: str, trigger: dict[str, Any]) -> RunningQuery:
        self.runs.append(RunningQuery(frame, self.home / checkpoint, trigger))
        return self.runs[-1]

    def offsets(self, checkpoint: str = "checkpoint") -> list[str]:
        """Return the offsets of a checkpoint, as Spark stored them."""
        files = sorted((self.home / checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [path.read_text().splitlines()[2] for path in files]


def by_partition(rows: list[Row]) -> dict[str, list[int]]:
    """Return the offsets of each partition, in the order of the rows."""
    found: dict[str, list[int]] = {}
    for partition, offset, _ in rows:
        found.setdefault(partition, []).append(offset)
    return found


def is_in_order(rows: list[Row]) -> bool:
    """Return whether each partition has every offset once, in order."""
    return all(offsets == list(range(offsets[0], offsets[0] + len(offsets))) for offsets in by_partition(rows).values())
