"""The streaming reader: Spark asks for the end of the next micro-batch, plans it, and lets tasks read it.

One reader lives in a process of the driver for as long as the query runs. `window.py` computes the micro-batches.
"""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from skep.spark.arrow import RecordBatch
from skep.spark.follow import Follower
from skep.spark.log import Log, LogSnapshot
from skep.spark.options import SourceOptions
from skep.spark.position import Position
from skep.spark.reader import TaskInput, read_task
from skep.spark.runs import count, pack
from skep.spark.window import MicroBatches

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.2  # seconds; without a pause Spark asks 80 times a second
Offset = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Implements Spark's interface of a streaming source, whose method names it has."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._log = Log(options)
        self._batches = MicroBatches(self._log)
        self._follower = Follower(self._log, self._batches, options.group) if options.group else None
        self._initial: Position | None = None
        self._target: LogSnapshot | None = None  # the end of a query with trigger(availableNow=True)
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
        self._target = self._log.snapshot()

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._newest

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next micro-batch, or `start` if there is nothing to read yet."""
        position = Position.from_json(start)
        now = self._target or self._log.snapshot()
        if self._follower:
            self._follower.follow(position)  # Spark has processed everything before the position that it starts from
        if self._is_initial(position):
            position.check(now.database, self._log.scope_id, now.snapshot)
            return position.to_json()
        return self._advance(position, now, limit).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        first, last = Position.from_json(start), Position.from_json(end)
        runs = [] if first == last else self._batches.runs(first, last)
        if self._follower:
            self._follower.expect(last, runs)
        options = self._options
        tasks = pack(runs, cores=os.cpu_count() or 1, max_rows=options.max_rows_per_task, min_tasks=options.min_tasks)
        return [TaskInput(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read_task(self._options, self._schema, partition)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark does not commit the last batch, and `latestOffset` learns of the others earlier."""

    def stop(self) -> None:
        self._log.db.close()

    def _is_initial(self, position: Position) -> bool:
        """Return true once, if the stream starts at a snapshot.

        The first micro-batch is then empty, so that the checkpoint has the snapshot before anything is read.
        """
        if position != self._initial or position.snapshot is None:
            return False
        self._initial = None
        return True

    def _advance(self, position: Position, now: LogSnapshot, limit: ReadLimit) -> Position:
        runs, until = self._batches.unread(position, now)
        rows = count(runs)
        if not self._is_enough(position, rows):
            self._report(now, rows)
            time.sleep(self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            return position
        self._pause, self._waiting_since = SHORTEST_PAUSE, time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else rows
        self._report(now, rows - most)
        return self._batches.end(position, until, runs, most)

    def _is_enough(self, position: Position, rows: int) -> bool:
        if position.snapshot is None and position.cut is None and not self._options.min_rows:
            return True  # even without rows: the checkpoint then has a snapshot in place of the start
        if self._target or position.cut or not self._options.min_rows:
            return rows > 0
        waited = time.monotonic() - self._waiting_since
        return rows >= self._options.min_rows or (rows > 0 and waited >= self._options.max_delay.total_seconds())

    def _report(self, now: LogSnapshot, behind: int) -> None:
        self._newest = {"behind": max(behind, 0), "snapshot": now.snapshot}
