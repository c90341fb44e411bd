"""The stream: Spark asks how far it can go, plans a micro-batch between two positions, and lets tasks read it.

One reader lives in a process of the driver for as long as the query runs. What it remembers only saves work: after a
restart everything follows from the two positions of a micro-batch that the checkpoint has.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from skep.spark import window
from skep.spark.arrow import RecordBatch
from skep.spark.follow import Follower
from skep.spark.log import Log, View
from skep.spark.options import SourceOptions
from skep.spark.position import Cut, Position
from skep.spark.reader import Task, read_task
from skep.spark.window import Run

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2  # Spark would ask 80 times a second
Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's face of a stream; Spark's names."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._log = Log(options)
        self._follower = Follower(self._log, options.group) if options.group else None
        self._initial: Position | None = None
        self._target: View | None = None  # of a run that ends with what is there now
        self._quiet: tuple[Position, str] | None = None  # nothing new between the two
        self._pause = SHORTEST_PAUSE
        self._waiting_since = time.monotonic()
        self._newest: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        if self._initial is None:
            self._initial = self._log.start()
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log.view()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._newest

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> Offset:  # noqa: N802
        position = Position.from_json(start)
        view = self._target or self._log.view()
        if self._follower:
            self._follower.follow(position)  # Spark asks for more when it is done with everything before
        if self._is_begun(position):
            return self._advance(position, view, limit).to_json()
        position.check(view.database, self._log.name, view.snapshot)
        return position.to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        first, last = Position.from_json(start), Position.from_json(end)
        runs = [] if first == last else self._log.runs(first, last)
        if self._follower:
            self._follower.expect(last, runs)
        options = self._options
        tasks = window.pack(
            runs, cores=os.cpu_count() or 1, max_rows=options.max_rows_per_task, min_tasks=options.min_tasks
        )
        return [Task(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_task(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: Spark never commits the last batch. `latestOffset` learns of it sooner, by what it starts from."""

    def stop(self) -> None:
        self._log.db.close()

    def _is_begun(self, position: Position) -> bool:
        """The first batch from a snapshot is empty, so that its place is in the checkpoint before anything is read."""
        if position != self._initial or position.snapshot is None:
            return True
        self._initial = None
        return False

    def _advance(self, position: Position, view: View, limit: ReadLimit) -> Position:
        if position.cut is None:
            runs, until = self._news(position, view), view.snapshot
        else:
            until = position.cut.view
            runs = self._log.runs(position, position.at(until))
        rows = window.count(runs)
        if not self._is_enough(position, rows):
            self._report(view, rows)
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            return position
        self._pause, self._waiting_since = SHORTEST_PAUSE, time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else rows
        self._report(view, rows - most)
        return (
            position.at(until) if rows <= most else position.with_cut(next_cut(self._log, position, until, runs, most))
        )

    def _news(self, position: Position, view: View) -> list[Run]:
        """Return what is new. A quiet stream falls behind the journal, and must not ask every lane each time."""
        position.check(view.database, self._log.name, view.snapshot)
        quiet = self._quiet[1] if self._quiet and self._quiet[0] == position else position.snapshot
        if quiet is not None:
            self._log.remember(position, view.snapshot, self._log.news(view, quiet))
        runs = self._log.runs(position, position.at(view.snapshot))
        self._quiet = None if runs else (position, view.snapshot)
        return runs

    def _is_enough(self, position: Position, rows: int) -> bool:
        if position.snapshot is None and position.cut is None and not self._options.min_rows:
            return True  # even of nothing: then the place it stands for is in the checkpoint
        if self._target or position.cut or not self._options.min_rows:
            return rows > 0
        waited = time.monotonic() - self._waiting_since
        return rows >= self._options.min_rows or (rows > 0 and waited >= self._options.max_delay.total_seconds())

    def _report(self, view: View, behind: int) -> None:
        self._newest = {"behind": max(behind, 0), "snapshot": view.snapshot}


def next_cut(log: Log, position: Position, view: str, runs: list[Run], limit: int) -> Cut:
    """Return a cut with at most `limit` rows of `runs`, which are more, before it."""
    found, cut = log.readable(log.window(position, view)), position.cut
    done = log.progress(found, cut)

    def before(instant: str | None) -> list[Run]:
        return window.between(found, done, window.bounds(found, log.offsets_at(found, instant), otherwise="end"))

    def rows_until(time: datetime) -> int:
        return window.count(before(time.isoformat()))

    if cut is None or not (cut.until is None or before(cut.until)):
        cut = _next_stretch(log, cut, view, runs, limit, rows_until)
    left = before(cut.until)
    if window.count(left) <= limit:
        return Cut(view, cut.until, cut.until)
    at = window.cut(left, limit)
    return Cut(view, cut.since, cut.until, at.lane, at.end)


def _next_stretch(
    log: Log, cut: Cut | None, view: str, runs: list[Run], limit: int, rows_until: Callable[[datetime], int]
) -> Cut:
    # With an archive, lane by lane: only the log knows which offset a time is, and only as long as it has it.
    oldest, newest = (None, None) if log.options.archive else log.times(runs)
    if oldest is None or newest is None:
        return Cut(view, cut and cut.until, None)
    until = window.stretch(rows_until, oldest, newest, window.count(runs), limit)
    return Cut(view, cut and cut.until, until and until.isoformat())
