"""Analytics: what a queue went through, from archive and log together, as tables and as a page for people.

The log behind the archive is read once, by the connector; the archive by Spark itself, where it lies. Everything
else is the SQL in `measures`: each file a table, over the views that the ones before it made.
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
from skep.pipelines.replaying import Span
from skep.pipelines.report.page import render
from skep.pipelines.report.result import Result
from skep.pipelines.report.story import findings
from skep.spark.arrow import arrow_of, empty, pa
from skep.spark.builder import register
from skep.spark.database import VIEW, database
from skep.spark.options import Selection
from skep.spark.parquet import Store, pq

COLUMNS = "queue string, partition string, partition_id long, offset long, timestamp timestamp"
ALWAYS, NEVER = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
STEPS = (1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600, 10_800, 21_600, 86_400, 604_800)  # seconds
MOST_STEPS = 120
# Each is a file in `measures`, and what its steps of time are chosen by.
MEASURES = {
    "throughput": "messages", "consumption": "samples", "lag": "samples", "time_in_queue": "leases",
    "time_in_queue_over_time": "leases", "deliveries": "leases", "fanout": "messages", "fanout_groups": "messages",
    "fanout_time": "leases", "errors": "messages", "skew": "messages", "hot_partitions": "messages",
}  # fmt: skip
PARTS = 3  # before the measures: the log, the archive, the tables

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
Watch = Callable[[int, int, str], None]


class File(NamedTuple):
    """A file of the archive."""

    location: str
    path: str
    queue: str
    day: date


@dataclass(frozen=True, slots=True)
class Analysed:
    """What an analysis has made, and what it found. `findings` is what needs attention."""

    report: str
    tables: str
    queues: list[str]
    messages: int
    findings: list[str]


def analytics(
    spark: SparkSession,
    url: str,
    reports: str | Path,
    selection: Selection | None = None,
    *,
    archive: str | None = None,
    span: Span | None = None,
    watch: Watch | None = None,
) -> Analysed:
    """Analyse queues, or all of them: a report and a directory of tables in `reports`. Nothing is changed.

    `archive` is where the files of the archive are now, if they were moved.
    """
    own = register(spark.newSession())  # views and settings of its own
    own.conf.set("spark.sql.session.timeZone", "UTC")
    job = Job(own, url, selection or Selection(), span or Span(), partial(_tell, watch))
    result, measured = job.run(archive)
    home = _home(Path(reports))
    for name, table in measured.items():
        pq.write_table(table, home / f"{name}.parquet")
    page = home.with_suffix(".html")
    _write(page, render(result))
    found = [finding.text for finding in findings(result)]
    return Analysed(str(page), str(home), result.queues, result.messages, found)


class Job:
    """One analysis: its session, its queues, its time."""

    def __init__(
        self, spark: SparkSession, url: str, selection: Selection, span: Span, tell: Callable[[int, str], None]
    ) -> None:
        self.spark, self.url, self.selection, self.tell = spark, url, selection, tell
        self.made_at: datetime = database(url).one(CLOCK)[0].astimezone(UTC)
        self.span, self.since, self.until = span, span.since or ALWAYS, span.until or NEVER
        _, _, self.queue_ids, live = database(url).one(VIEW, **selection.arguments())
        self.files = self._list()
        self.queues = sorted({*live, *(file.queue for file in self.files)})
        missing = sorted(set(selection.queues or ()) - set(self.queues))
        if missing:
            raise NotFound(f'there is no queue "{missing[0]}", neither in the log nor in an archive')

    def run(self, archive: str | None) -> tuple[Result, dict[str, Any]]:
        """Return what was measured, for the report, and as tables of Arrow."""
        self.tell(0, "the log")
        self._view("tail", self._tail().localCheckpoint(eager=True))
        self.tell(1, "the archive")
        self.files = self._list()  # after the tail: what was archived meanwhile must not fall between the two
        self._view("archive", self._archived(archive, self.files))
        self._view("messages", self._sql("messages"))
        self.tell(2, "groups and leases")
        for name, frame in self._tables().items():
            self._view(name, frame.localCheckpoint(eager=True))
        steps = {name: _step(*ends) for name, ends in self._extents(archive).items()}
        self._view("runs", self._sql("runs", steps["messages"]).localCheckpoint(eager=True))
        self._view("done", self._sql("done").localCheckpoint(eager=True))
        measured: dict[str, Any] = {}
        for number, (name, kind) in enumerate(MEASURES.items(), PARTS):
            self.tell(number, name.replace("_", " "))
            measured[name] = arrow_of(self._sql(name, steps[kind]))
        self.tell(PARTS + len(MEASURES), "the report")
        measured["groups"] = self._groups()
        unlogged = [name for (name,) in database(self.url).rows(UNLOGGED, queues=self.queues)]
        rows = {name: table.to_pylist() for name, table in measured.items()}
        since, until = self.span.since, self.span.until
        return Result(self.made_at, since, until, self.queues, steps, rows, rows["groups"], unlogged), measured

    def _tail(self) -> DataFrame:
        """What the log has behind the archive."""
        asked, reader = self.selection, self.spark.read.format("skep").schema(COLUMNS)
        options = {"url": self.url, "startingOffsets": "archived", "failOnDataLoss": "false"}
        if asked.namespace is not None or asked.task is not None:
            options |= {name: value for name in ("namespace", "task") if (value := getattr(asked, name)) is not None}
        elif asked.queues is not None:  # not by subscribe: a name may have commas
            options["subscribePattern"] = "|".join(re.escape(name) for name in asked.queues)
        else:
            options["subscribePattern"] = asked.pattern or ".*"
        if self.span.since:
            options["startingTimestamp"] = self.span.since.isoformat()
        if self.span.until:
            options["endingTimestamp"] = self.span.until.isoformat()
        return reader.options(**options).load()

    def _list(self) -> list[File]:
        """Return the files of the archive, the oldest first."""
        span = {"since": self.since.date(), "until": self.until.date()}
        return [File(*row) for row in database(self.url).rows(FILES, **self.selection.arguments(), **span)]

    def _archived(self, location: str | None, files: Sequence[File]) -> DataFrame:
        if not files:
            return empty(self.spark, COLUMNS)
        paths = [f"{Store.at(location or file.location).location}/{file.path}" for file in files]
        try:
            frame = self.spark.read.schema(COLUMNS).parquet(*paths)
        except AnalysisException as error:
            message = f"the archive cannot be read: {error.getMessage()}"
            raise ConfigError(message, hint="If the files were moved, say where they are.") from None
        return frame.where(frame["timestamp"] >= self.since).where(frame["timestamp"] < self.until)

    def _tables(self) -> dict[str, DataFrame]:
        frame, since, until = partial(tables.frame, self.spark, self.url), self.since, self.until
        finished = tables.by_finish(self.url, self.queue_ids, since, until)
        given_up: list[tables.Piece] = [{"queues": self.queues}]
        return {
            "progress": frame(tables.PROGRESS, tables.by_lanes(self.url, self.queues)),
            "samples": frame(tables.SAMPLES, tables.by_queues(self.queues, since, until)),
            "leases": frame(tables.LEASES, finished),
            "letters": frame(tables.LETTERS_OF, tables.by_letter(self.url, self.queues, since, until)),
            "given_up": frame(tables.GIVEN_UP, given_up if finished else []),
        }

    def _extents(self, archive: str | None) -> dict[str, tuple[datetime, datetime]]:
        """When each kind of thing began and ended; of the archive, the first and the last day are asked."""
        days = [file.day for file in self.files]
        edges = self._archived(archive, [file for file in self.files if file.day in (*days[:1], *days[-1:])])
        messages = self.spark.table("tail").select("timestamp").unionAll(edges.select("timestamp"))
        samples, leases = self.spark.table("samples"), self.spark.table("leases")
        times = [
            messages.selectExpr("'messages' AS kind", "timestamp"),
            samples.selectExpr("'samples' AS kind", "at AS timestamp"),
            leases.selectExpr("'leases' AS kind", "finished_at AS timestamp"),
        ]
        all_times: Any = reduce(DataFrame.unionAll, times)
        ends: list[tuple[str, int, int]] = all_times.groupBy("kind").agg(_micros(f.min), _micros(f.max)).collect()
        found = {kind: (_moment(first), _moment(last)) for kind, first, last in ends}
        return {kind: found.get(kind, (self.made_at, self.made_at)) for kind in ("messages", "samples", "leases")}

    def _groups(self) -> Any:  # noqa: ANN401
        """How the groups are now."""
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


def _micros(edge: Callable[[str], Column]) -> Column:
    return f.unix_micros(edge("timestamp"))


def _moment(micros: int) -> datetime:
    return ALWAYS + timedelta(microseconds=micros)


def _step(first: datetime, last: datetime) -> int:
    seconds = (last - first).total_seconds()
    return next((step for step in STEPS if seconds / step <= MOST_STEPS), STEPS[-1])


def _tell(watch: Watch | None, number: int, name: str) -> None:
    if watch:
        watch(number, PARTS + len(MEASURES), name)


def _home(reports: Path) -> Path:
    """Make the directory of the tables; its name is the report's as well."""
    time = datetime.now(UTC)
    while True:
        home = reports.expanduser() / f"analytics-{time:%Y%m%dT%H%M%SZ}"
        try:
            home.mkdir(parents=True)
        except FileExistsError:
            time += timedelta(seconds=1)
        else:
            return home


def _write(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all: others look for the newest one."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
