"""Micro-batches: the runs between two positions, and the position at which the next micro-batch ends.

    position ──► Window: a run of each partition, up to a snapshot ──┬──► all of it ──► position.at(snapshot)
                                                                     └──► a part of it, by a row limit ──► Cut

Only this module computes positions. Everything follows from the two positions of a micro-batch, which the checkpoint
has: after a restart the same micro-batch has the same runs. `MicroBatches` remembers the last window, and that nothing
followed a position, only to save queries.
"""

import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from skep.spark.archive import describe, find_archived
from skep.spark.log import Log, LogSnapshot, WindowRow
from skep.spark.position import Cut, Position
from skep.spark.runs import DeletedRun, Run, count

SHORTEST_SLICE = timedelta(milliseconds=1)
MAX_GUESSES = 24
END_OF_TIME = datetime.max.replace(tzinfo=UTC)
log = logging.getLogger("skep.spark")


class Window:
    """The messages that became visible between a position and a later snapshot: a run of each partition."""

    def __init__(self, source: Log, rows: Sequence[WindowRow]) -> None:
        self._log, self.rows = source, rows
        self._offsets_at: dict[str, list[int]] = {}

    def runs(self, start: Cut | None = None, end: Cut | None = None) -> list[Run]:
        """Return the runs between two cuts; None is the beginning and the end of the window.

        Messages that retention has deleted before they were read are read from the archive. If it does not have them,
        this raises DataLoss, or logs a warning if `failOnDataLoss` is false.
        """
        firsts = self.offsets(start)
        ends = self.offsets(end) if end else [row.end for row in self.rows]
        self._check_deleted(start)
        return self._between(firsts, ends)

    def offsets(self, cut: Cut | None) -> list[int]:
        """Return the offset up to which each partition has been read at a cut."""
        if cut is None:
            return [row.first for row in self.rows]
        since = clamp(self.rows, self._at(cut.since), default="first")
        until = clamp(self.rows, self._at(cut.until), default="end")
        return offsets_at_cut(self.rows, cut, since, until)

    def next_cut(self, position: Position, until: str, runs: list[Run], limit: int) -> Cut:
        """Return the cut after the next messages, at most `limit` of them. `runs`, which are left, have more."""
        cut, firsts = position.cut, self.offsets(position.cut)

        def runs_before(instant: str | None) -> list[Run]:
            return self._between(firsts, clamp(self.rows, self._at(instant), default="end"))

        def rows_before(instant: datetime) -> int:
            return count(runs_before(instant.isoformat()))

        if cut is None or not (cut.until is None or runs_before(cut.until)):
            cut = self._next_slice(cut, until, runs, limit, rows_before)
        left = runs_before(cut.until)
        if count(left) <= limit:
            return Cut(until, cut.until, cut.until)
        last = run_at_limit(left, limit)
        return Cut(until, cut.since, cut.until, last.partition_id, last.end)

    def _next_slice(
        self, cut: Cut | None, until: str, runs: list[Run], limit: int, rows_before: Callable[[datetime], int]
    ) -> Cut:
        # Only the log can tell the offset of a time, and only of messages that it keeps. With an archive the rest of
        # the window is one slice, which is read partition by partition.
        oldest, newest = (None, None) if self._log.options.archive else self._log.times(runs)
        if oldest is None or newest is None:
            return Cut(until, cut and cut.until, None)
        end = end_of_slice(rows_before, oldest, newest, count(runs), limit)
        return Cut(until, cut and cut.until, end and end.isoformat())

    def _at(self, instant: str | None) -> list[int] | None:
        if instant is None:
            return None
        if instant not in self._offsets_at:
            self._offsets_at[instant] = self._log.offsets_at([row.partition_id for row in self.rows], instant)
        return self._offsets_at[instant]

    def _between(self, firsts: Sequence[int], ends: Sequence[int]) -> list[Run]:
        return runs_between(self.rows, firsts, ends, archive=self._log.options.archive is not None)

    def _check_deleted(self, start: Cut | None) -> None:
        deleted, options = deleted_runs(self.rows, start), self._log.options
        if deleted and options.fail_on_data_loss:
            find_archived(self._log.db, options.archive, deleted)
        elif deleted:
            log.warning("%s", describe(self._log.db, options.archive, deleted))


class MicroBatches:
    """The micro-batches of a stream."""

    def __init__(self, source: Log) -> None:
        self._log = source
        self._window: tuple[object, Window] = (None, Window(source, []))
        self._nothing_until: tuple[Position, str] | None = None  # nothing follows the position up to this snapshot

    def runs(self, start: Position, end: Position) -> list[Run]:
        """Return the runs between two positions."""
        snapshot = start.cut.snapshot if start.cut else (end.cut.snapshot if end.cut else end.snapshot)
        return self.window(start, str(snapshot)).runs(start.cut, end.cut)

    def unread(self, position: Position, now: LogSnapshot) -> tuple[list[Run], str]:
        """Return the runs after a position, and the snapshot that they lead to: that of its cut, if it has one."""
        if position.cut:
            return self.runs(position, position.at(position.cut.snapshot)), position.cut.snapshot
        position.check(now.database, self._log.scope_id, now.snapshot)
        # The journal is pruned. A stream without new messages would fall behind it, and then each query would have to
        # ask every partition: so the query begins at the last snapshot that is known to have nothing new.
        nothing = self._nothing_until
        since = nothing[1] if nothing and nothing[0] == position else position.snapshot
        if since is not None:
            self._remember(position, now.snapshot, self._log.window(now, since, None, now.snapshot))
        runs = self.runs(position, position.at(now.snapshot))
        self._nothing_until = None if runs else (position, now.snapshot)
        return runs, now.snapshot

    def end(self, position: Position, until: str, runs: list[Run], limit: int) -> Position:
        """Return the position after at most `limit` messages of `runs`, which lead up to the snapshot `until`."""
        if count(runs) <= limit:
            return position.at(until)
        return position.with_cut(self.window(position, until).next_cut(position, until, runs, limit))

    def window(self, position: Position, until: str) -> Window:
        """Return the window between a position, without its cut, and a snapshot."""
        if self._window[0] != _window_key(position, until):
            rows = self._log.window(self._log.snapshot(), position.snapshot, position.start, until)
            self._remember(position, until, rows)
        return self._window[1]

    def _remember(self, position: Position, until: str, rows: Sequence[WindowRow]) -> None:
        self._window = (_window_key(position, until), Window(self._log, rows))


def _window_key(position: Position, until: str) -> tuple[str | None, str, str]:
    return position.snapshot, json.dumps(position.start), until


def batch_runs(source: Log) -> list[Run]:
    """Return the runs that a batch query reads."""
    now, options = source.snapshot(), source.options
    since = now.snapshot if options.start == "latest" else None
    start = {} if since else source.start_at(now)
    stop = None if isinstance(options.stop, str) else {**options.stop, "view": now.snapshot}
    runs = Window(source, source.window(now, since, start, now.snapshot, stop)).runs()
    if options.archive is not None and options.start == {"archive": True}:
        return [*source.archived_partitions(now), *runs]
    return runs


def runs_between(
    rows: Sequence[WindowRow], firsts: Sequence[int], ends: Sequence[int], *, archive: bool = False
) -> list[Run]:
    """Return the runs between two lists of offsets, without messages that neither the log nor an archive has."""
    starts = firsts if archive else [max(first, row.kept_from) for row, first in zip(rows, firsts, strict=True)]
    return [
        Run(row.partition_id, first, end) for row, first, end in zip(rows, starts, ends, strict=True) if first < end
    ]


def offsets_at_cut(rows: Sequence[WindowRow], cut: Cut, since: Sequence[int], until: Sequence[int]) -> list[int]:
    """Return the offset up to which each partition has been read, given the offsets of the times of the cut."""
    return [
        cut.offset
        if row.partition_id == cut.partition_id
        else (until if row.partition_id < cut.partition_id else since)[number]
        for number, row in enumerate(rows)
    ]


def clamp(rows: Sequence[WindowRow], offsets: Sequence[int] | None, *, default: str) -> list[int]:
    """Limit the offset of a time in each partition to the window; None is replaced by the first or the end offset."""
    if offsets is None:
        return [row.first if default == "first" else row.end for row in rows]
    return [min(max(offset, row.first), row.end) for row, offset in zip(rows, offsets, strict=True)]


def deleted_runs(rows: Sequence[WindowRow], cut: Cut | None) -> list[DeletedRun]:
    """Return the messages that retention has deleted before they were read."""
    found = (_deleted(row, cut) for row in rows)
    return [run for run in found if run and (run.first is None or run.first < run.end)]


def _deleted(row: WindowRow, cut: Cut | None) -> DeletedRun | None:
    id_, below = row.partition_id, min(row.kept_from, row.end)
    if cut and id_ == cut.partition_id:
        return DeletedRun(id_, cut.offset, below)
    read_before = _read_before(row, cut)
    if read_before is None:
        return DeletedRun(id_, None, row.kept_from) if row.unseen else DeletedRun(id_, row.first, below)
    was_read = row.deleted_at is None or row.deleted_at < read_before
    return None if was_read or not (row.unseen or row.kept_from > row.first) else DeletedRun(id_, None, row.kept_from)


def _read_before(row: WindowRow, cut: Cut | None) -> datetime | None:
    """Return the time before which everything in a partition has been read, None if nothing in the window has."""
    if cut is None:
        return None
    if row.partition_id < cut.partition_id:
        return datetime.fromisoformat(cut.until) if cut.until else END_OF_TIME
    return datetime.fromisoformat(cut.since) if cut.since else None


def run_at_limit(runs: Sequence[Run], limit: int) -> Run:
    """Return the run that contains the message number `limit`, up to that message."""
    totals = list(accumulate(run.end - run.first for run in runs))
    number = bisect_left(totals, limit)
    partition_id, first, end = runs[number]
    return Run(partition_id, first, end - (totals[number] - limit))


def end_of_slice(
    rows_before: Callable[[datetime], int], oldest: datetime, newest: datetime, rows: int, limit: int
) -> datetime | None:
    """Return a time before which there are about `limit` rows: at least one, and if possible at most twice the limit.

    None means that all the rows that are left are one slice. The first guess assumes that rows are spread evenly.
    """
    low, high = oldest, newest
    guess = oldest + (newest - oldest) * (limit / rows)
    for _ in range(MAX_GUESSES):
        found = rows_before(guess)
        if 0 < found <= 2 * limit:
            return guess
        low, high = (guess, high) if found == 0 else (low, guess)
        if high - low <= SHORTEST_SLICE:
            break
        guess = low + (high - low) / 2
    return high if high < newest else None
