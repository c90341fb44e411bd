"""The queries of Spark's driver: the newest snapshot, the window between two snapshots, the offsets of a time."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from skep.errors import ConfigError, NotFound, explained
from skep.spark.database import (
    ARCHIVED_PARTITIONS,
    GROUP_EXISTS,
    OFFSETS_AT,
    READ_SNAPSHOT,
    READ_WINDOW,
    TIMES,
    SparkDatabase,
    database,
)  # fmt: skip
from skep.spark.options import SourceOptions
from skep.spark.position import Position
from skep.spark.runs import Run, as_arguments


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """A snapshot of the database, and the queues of the scope that exist in it."""

    database: str
    snapshot: str
    queue_ids: list[int]
    queues: list[str]


class WindowRow(NamedTuple):
    """A row of `skep._read_window`: a run, and how much of it retention has deleted."""

    partition_id: int
    first: int
    end: int
    kept_from: int
    unseen: bool
    deleted_at: datetime | None


class Log:
    """The log of the queues that a source reads."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @property
    def db(self) -> SparkDatabase:
        return database(self.options.url)

    @property
    def scope_id(self) -> str:
        """A hash of the scope, for the checkpoint: the names of thousands of queues would be too long."""
        return hashlib.sha256(json.dumps(self.options.scope.arguments()).encode()).hexdigest()[:12]

    def snapshot(self) -> LogSnapshot:
        try:
            return LogSnapshot(*self.db.one(READ_SNAPSHOT, **self.options.scope.arguments()))
        except psycopg.errors.InvalidRegularExpression as error:
            pattern = self.options.scope.pattern
            raise ConfigError(f'option subscribePattern is "{pattern}": {error.diag.message_primary}') from None

    def start(self) -> Position:
        """Return the position at which a new stream starts, according to its options."""
        now = self.snapshot()
        position = Position(now.database, self.scope_id)
        if self.options.start == "latest":
            return position.at(now.snapshot)
        return Position(now.database, self.scope_id, start=self.start_at(now))

    def start_at(self, now: LogSnapshot) -> dict[str, Any]:
        """Return the start of the options as `skep._offset_of_start` takes it."""
        start = self.options.start
        if isinstance(start, str):
            return {}
        if "group" in start and not self.db.one(GROUP_EXISTS, group=start["group"])[0]:
            raise NotFound(f'startingOffsets is "group:{start["group"]}", but there is no such group')
        return {**start, "view": now.snapshot} if "offsets" in start else start

    def window(
        self, now: LogSnapshot, since: str | None, start: object, until: str, stop: object = None
    ) -> list[WindowRow]:
        """Return the messages between a snapshot or a start, and a later snapshot: a row for each partition."""
        with explained():
            rows = self.db.rows(
                READ_WINDOW, queue_ids=now.queue_ids, since=since, until=until, start=json.dumps(start or {}),
                stop=None if stop is None else json.dumps(stop), group=self.options.group,
            )  # fmt: skip
        return [WindowRow(*row) for row in rows]

    def archived_partitions(self, now: LogSnapshot) -> list[Run]:
        """Return the archived partitions that were deleted from the log."""
        queues = sorted({*now.queues, *(self.options.scope.queues or ())})
        return [Run(*row) for row in self.db.rows(ARCHIVED_PARTITIONS, queues=queues)]

    def offsets_at(self, partition_ids: Sequence[int], instant: str) -> list[int]:
        """Return the first offset in each partition that is not older than a time."""
        return self.db.one(OFFSETS_AT, partition_ids=list(partition_ids), instant=instant)[0] or []

    def times(self, runs: Sequence[Run]) -> tuple[datetime | None, datetime | None]:
        """Return the time of the oldest and of the newest message of the runs."""
        oldest, newest = self.db.one(TIMES, **as_arguments(runs))
        return oldest, newest
