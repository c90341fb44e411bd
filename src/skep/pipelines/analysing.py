"""Analytics: measure the messages of queues, in archive and log together. The results are tables and a report.

The data source reads the part of the log that is not archived, once; Spark itself reads the files of the archive. The
rest is SQL, in `measures`: each file computes a table from the views that the files before it have created.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial, reduce
from importlib import resources
from pathlib import Path
from typing import Any, LiteralString, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from skep.errors import ConfigError, NotFound
from skep.pipelines import tables
from skep.pipelines.replaying import TimeRange
from skep.pipelines.report.page import render
from skep.pipelines.report.result import Result
from skep.pipelines.report.story import findings
from skep.spark.arrow import arrow_of, empty, pa
from skep.spark.builder import register
from skep.spark.database import READ_SNAPSHOT, database
from skep.spark.options import QueueScope
from skep.spark.parquet import ArchiveStore, pq

COLUMNS = "queue string, partition string, partition_id long, offset long, timestamp timestamp"
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
STEPS = (1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 86_400, 604_800)  # seconds
MOST_STEPS = 120
# Each is a file in `measures`, and the data whose length in time determines its step.
MEASURES = {
    "throughput": "messages", "consumption": "samples", "lag": "samples", "time_in_queue": "leases",
    "time_in_queue_over_time": "leases", "deliveries": "leases", "fanout": "messages", "fanout_groups": "messages",
    "fanout_time": "leases", "errors": "messages", "skew": "messages", "hot_partitions": "messages",
}  # fmt: skip
PARTS = 3  # of the work before the measures: the log, the archive, the tables

FILES: LiteralString = """
    SELECT location, path, queue, day FROM skep._archived_files(%(queues)s, %(pattern)s, %(namespace)s, %(task)s)
    WHERE day >= %(since)s AND day <= %(until)s
"""
GROUPS: LiteralString = """
    SELECT group_name, queue, status, lag, dead_letters, missed, oldest_pending_at, last_consumed_at
    FROM skep.group_status() WHERE queue = ANY (%(queues)s) ORDER BY queue, group_name
"""
TIME = pa.timestamp("us", tz="UTC")
GROUP_COLUMNS = pa.schema(
    [
        ("group_name", pa.string()), ("queue", pa.string()), ("status", pa.string()), ("lag", pa.int64()),
        ("dead_letters", pa.int64()), ("missed", pa.int64()), ("oldest_pending_at", TIME), ("last_consumed_at", TIME),
    ]
)  # fmt: skip
CLOCK: LiteralString = "SELECT clock_timestamp()"
UNLOGGED: LiteralString = """
    SELECT name FROM skep.queues WHERE name = ANY (%(queues)s) AND lease_log_seconds IS NULL ORDER BY name
"""
OnProgress = Callable[[int, int, str], None]


class ArchiveFile(NamedTuple):
    """A file of an archive."""

    location: str
    path: str
    queue: str
    day: date


@dataclass(frozen=True, slots=True)
class Analysed:
    """The result of an analysis: paths of the report and of the tables, and findings that need attention."""

    report: str
    tables: str
    queues: list[str]
    messages: int
    findings: list[str]


def analytics(
    spark: SparkSession,
    url: str,
    reports: str | Path,
    scope: QueueScope | None = None,
    *,
    archive: str | None = None,
    time_range: TimeRange | None = None,
    on_progress: OnProgress | None = None,
) -> Analysed:
    """Analyse the queues of a scope, by default all. Write a report and a directory of tables to `reports`.

    `archive` is the current location of the archive, if its files were moved.
    """
    own = register(spark.newSession())  # so that its views and settings do not change the caller's session
    own.conf.set("spark.sql.session.timeZone", "UTC")
    analysis = Analysis(own, url, scope or QueueScope(), time_range or TimeRange(), partial(_report, on_progress))
    result, measured = analysis.run(archive)
    directory = _make_directory(Path(reports))
    for name, table in measured.items():
        pq.write_table(table, directory / f"{name}.parquet")
    page = directory.with_suffix(".html")
    _write(page, render(result))
    found = [finding.text for finding in findings(result)]
    return Analysed(str(page), str(directory), result.queues, result.messages, found)


class Analysis:
    """One analysis: its session, its queues and its time range."""

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        scope: QueueScope,
        time_range: TimeRange,
        report: Callable[[int, str], None],
    ) -> None:
        self.spark, self.url, self.scope, self.report = spark, url, scope, report
        self.made_at: datetime = database(url).one(CLOCK)[0].astimezone(UTC)
        self.time_range = time_range
        self.since, self.until = time_range.since or EARLIEST, time_range.until or LATEST
        _, _, self.queue_ids, live = database(url).one(READ_SNAPSHOT, **scope.arguments())
        self.files = self._list()
        self.queues = sorted({*live, *(file.queue for file in self.files)})
        missing = sorted(set(scope.queues or ()) - set(self.queues))
        if missing:
            raise NotFound(f'queue "{missing[0]}" does not exist, and is not archived')

    def run(self, archive: str | None) -> tuple[Result, dict[str, Any]]:
        """Return the measurements, for the report and as Arrow tables."""
        self.report(0, "the log")
        self._view("tail", self._tail().localCheckpoint(eager=True))
        self.report(1, "the archive")
        self.files = self._list()  # after the log, so that files that were archived meanwhile are not missing
        self._view("archive", self._archived(archive, self.files))
        self._view("messages", self._sql("messages"))
        self.report(2, "groups and leases")
        for name, frame in self._tables().items():
            self._view(name, frame.localCheckpoint(eager=True))
        steps = {name: _step(*ends) for name, ends in self._extents(archive).items()}
        self._view("runs", self._sql("runs", steps["messages"]).localCheckpoint(eager=True))
        self._view("done", self._sql("done").localCheckpoint(eager=True))
        measured: dict[str, Any] = {}
        for number, (name, kind) in enumerate(MEASURES.items(), PARTS):
            self.report(number, name.replace("_", " "))
            measured[name] = arrow_of(self._sql(name, steps[kind]))
        self.report(PARTS + len(MEASURES), "the report")
        measured["groups"] = self._groups()
        unlogged = [name for (name,) in database(self.url).rows(UNLOGGED, queues=self.queues)]
        rows = {name: table.to_pylist() for name, table in measured.items()}
        since, until = self.time_range.since, self.time_range.until
        return Result(self.made_at, since, until, self.queues, steps, rows, rows["groups"], unlogged), measured

    def _tail(self) -> DataFrame:
        """Return the messages of the log that are not archived."""
        scope, reader = self.scope, self.spark.read.format("skep").schema(COLUMNS)
        options = {"url": self.url, "startingOffsets": "archived", "failOnDataLoss": "false"}
        if scope.namespace is not None or scope.task is not None:
            options |= {name: value for name in ("namespace", "task") if (value := getattr(scope, name)) is not None}
        elif scope.queues is not None:  # subscribe separates names by commas, which a name may contain
            options["subscribePattern"] = "|".join(re.escape(name) for name in scope.queues)
        else:
            options["subscribePattern"] = scope.pattern or ".*"
        if self.time_range.since:
            options["startingTimestamp"] = self.time_range.since.isoformat()
        if self.time_range.until:
            options["endingTimestamp"] = self.time_range.until.isoformat()
        return reader.options(**options).load()

    def _list(self) -> list[ArchiveFile]:
        """Return the files of the archive, the oldest first."""
        days = {"since": self.since.date(), "until": self.until.date()}
        return [ArchiveFile(*row) for row in database(self.url).rows(FILES, **self.scope.arguments(), **days)]

    def _archived(self, location: str | None, files: Sequence[ArchiveFile]) -> DataFrame:
        if not files:
            return empty(self.spark, COLUMNS)
        paths = [f"{ArchiveStore.at(location or file.location).location}/{file.path}" for file in files]
        try:
            frame = self.spark.read.schema(COLUMNS).parquet(*paths)
        except AnalysisException as error:
            message = f"the archive cannot be read: {error.getMessage()}"
            raise ConfigError(message, hint="If the files were moved, give their location.") from None
        return frame.where(frame["timestamp"] >= self.since).where(frame["timestamp"] < self.until)

    def _tables(self) -> dict[str, DataFrame]:
        frame, since, until = partial(tables.frame, self.spark, self.url), self.since, self.until
        finished = tables.by_finish(self.url, self.queue_ids, since, until)
        all_queues: list[tables.Arguments] = [{"queues": self.queues}]
        return {
            "progress": frame(tables.PROGRESS, tables.by_partitions(self.url, self.queues)),
            "samples": frame(tables.SAMPLES, tables.by_queues(self.queues, since, until)),
            "leases": frame(tables.LEASES, finished),
            "dead_letters": frame(tables.FAILURES, tables.by_dead_letters(self.url, self.queues, since, until)),
            "dead_lettered": frame(tables.DEAD_LETTERED, all_queues if finished else []),
        }

    def _extents(self, archive: str | None) -> dict[str, tuple[datetime, datetime]]:
        """Return the first and the last time of messages, samples and leases.

        Of the archive only the first and the last day are read.
        """
        days = [file.day for file in self.files]
        ends_of_archive = self._archived(archive, [file for file in self.files if file.day in (*days[:1], *days[-1:])])
        messages = self.spark.table("tail").select("timestamp").unionAll(ends_of_archive.select("timestamp"))
        samples, leases = self.spark.table("samples"), self.spark.table("leases")
        times = [
            messages.selectExpr("'messages' AS kind", "timestamp"),
            samples.selectExpr("'samples' AS kind", "at AS timestamp"),
            leases.selectExpr("'leases' AS kind", "finished_at AS timestamp"),
        ]
        all_times: Any = reduce(DataFrame.unionAll, times)
        ends: list[tuple[str, int, int]] = all_times.groupBy("kind").agg(_micros(f.min), _micros(f.max)).collect()
        found = {kind: (_from_micros(first), _from_micros(last)) for kind, first, last in ends}
        return {kind: found.get(kind, (self.made_at, self.made_at)) for kind in ("messages", "samples", "leases")}

    def _groups(self) -> Any:  # noqa: ANN401
        """Return the current state of the groups."""
        rows = database(self.url).rows(GROUPS, queues=self.queues)
        columns = zip(*rows, strict=True) if rows else [()] * len(GROUP_COLUMNS)
        return pa.table(
            [pa.array(values, field.type) for values, field in zip(columns, GROUP_COLUMNS, strict=True)], GROUP_COLUMNS
        )

    def _sql(self, name: str, step: int | None = None) -> DataFrame:
        text = (resources.files("skep.pipelines") / "measures" / f"{name}.sql").read_text()
        return self.spark.sql(text, {"step": step} if step and ":step" in text else None)

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)


def _micros(minimum_or_maximum: Callable[[str], Column]) -> Column:
    return f.unix_micros(minimum_or_maximum("timestamp"))


def _from_micros(micros: int) -> datetime:
    return EARLIEST + timedelta(microseconds=micros)


def _step(first: datetime, last: datetime) -> int:
    """Return the shortest step, in seconds, that divides a time into at most MOST_STEPS."""
    seconds = (last - first).total_seconds()
    return next((step for step in STEPS if seconds / step <= MOST_STEPS), STEPS[-1])


def _report(on_progress: OnProgress | None, number: int, name: str) -> None:
    if on_progress:
        on_progress(number, PARTS + len(MEASURES), name)


def _make_directory(reports: Path) -> Path:
    """Create the directory of the tables. The report has the same name."""
    time = datetime.now(UTC)
    while True:
        directory = reports.expanduser() / f"analytics-{time:%Y%m%dT%H%M%SZ}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            time += timedelta(seconds=1)
        else:
            return directory


def _write(path: Path, text: str) -> None:
    """Write a file atomically: other processes open the newest report."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
