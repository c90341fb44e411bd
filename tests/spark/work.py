"""What tests do with Spark: streams that are drained or run, and a database to push to."""

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
    """Wait until the condition holds; what Spark does takes its time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(0.02)


class Run:
    """A query that runs, and what it has read, batch by batch; a batch that is repeated replaces itself."""

    def __init__(self, frame: DataFrame, checkpoint: Path, trigger: dict[str, Any]) -> None:
        self.batches: dict[int, list[Row]] = {}
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = writer.trigger(**trigger).start()

    def _take(self, frame: DataFrame, batch: int) -> None:
        self.batches[batch] = [(row.partition, row.offset, row.value) for row in frame.collect()]

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def values(self) -> list[str]:
        return [value for _, _, value in self.rows]

    @property
    def behind(self) -> int | None:
        """How many messages the stream has still to read, as its progress tells."""
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
    """Spark on a database."""

    def __init__(self, spark: SparkSession, url: str, home: Path) -> None:
        self.spark, self.url, self.home = spark, url, home
        self.connection = psycopg.connect(url, autocommit=True)
        self.runs: list[Run] = []

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

    def spread(self, queue: str, count: int, lanes: int) -> None:
        """Push a number to each of many lanes, in turn."""
        self.sql(
            "SELECT count(*) FROM skep.push((SELECT jsonb_agg(jsonb_build_object('queue', %s::text, "
            "'partition', 'p' || n %% %s, 'payload', n)) FROM generate_series(0, %s - 1) n))",
            queue, lanes, count,
        )  # fmt: skip

    def sql(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(query.encode(), arguments)
        return cursor.fetchall() if cursor.description else []

    def log(self, queue: str) -> list[Row]:
        """What is in a queue, by the database's own word."""
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

    def drain(self, queue: str | None = None, *, checkpoint: str = "checkpoint", **options: str) -> Run:
        """Read what is there now, and end."""
        run = self._run(self.stream(queue, **options), checkpoint, {"availableNow": True})
        run.query.awaitTermination()
        return run

    def follow(self, queue: str | None = None, *, checkpoint: str = "checkpoint", **options: str) -> Run:
        """Read until the end of the test."""
        return self._run(self.stream(queue, **options), checkpoint, {"processingTime": "0 seconds"})

    def _run(self, frame: DataFrame, checkpoint: str, trigger: dict[str, Any]) -> Run:
        self.runs.append(Run(frame, self.home / checkpoint, trigger))
        return self.runs[-1]

    def offsets(self, checkpoint: str = "checkpoint") -> list[str]:
        """The offsets in a checkpoint, as Spark stored them."""
        files = sorted((self.home / checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [path.read_text().splitlines()[2] for path in files]


def lanes(rows: list[Row]) -> dict[str, list[int]]:
    """Offsets in the order they came, lane by lane."""
    found: dict[str, list[int]] = {}
    for partition, offset, _ in rows:
        found.setdefault(partition, []).append(offset)
    return found


def is_in_order(rows: list[Row]) -> bool:
    """Every lane from its first offset on, each offset once."""
    return all(offsets == list(range(offsets[0], offsets[0] + len(offsets))) for offsets in lanes(rows).values())
