"""What lies between two positions, as runs of lanes; cutting it to a row limit, and packing it into tasks. No I/O."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

SHORTEST_STRETCH = timedelta(milliseconds=1)
PROBES = 24


class Run(NamedTuple):
    """A run of one lane, [first, end)."""

    lane: int
    first: int
    end: int


class News(NamedTuple):
    """A row of `skep.read_window`: a run, and what retention left of it."""

    lane: int
    first: int
    end: int
    kept: int
    unseen: bool
    deleted_at: datetime | None


class Lost(NamedTuple):
    """What retention deleted before it was read: [first, end), of which `first` may be unknown."""

    lane: int
    first: int | None
    end: int


def count(runs: Iterable[Run]) -> int:
    return sum(run.end - run.first for run in runs)


def between(window: Sequence[News], done: Sequence[int], goal: Sequence[int]) -> list[Run]:
    """Return the runs from one row of offsets to another, lane by lane, without what is not there any more."""
    return [
        Run(news.lane, max(first, news.kept), end)
        for news, first, end in zip(window, done, goal, strict=True)
        if max(first, news.kept) < end
    ]


def progress(window: Sequence[News], lane: int, offset: int, since: Sequence[int], until: Sequence[int]) -> list[int]:
    """Return up to where each lane is read: to `until` below the lane, to `since` above it."""
    return [
        offset if news.lane == lane else (until if news.lane < lane else since)[number]
        for number, news in enumerate(window)
    ]


def bounds(window: Sequence[News], offsets: Sequence[int] | None, *, otherwise: str) -> list[int]:
    """Return where a time falls in each lane, within the window; no time is its beginning or its end."""
    if offsets is None:
        return [news.first if otherwise == "first" else news.end for news in window]
    return [min(max(at, news.first), news.end) for news, at in zip(window, offsets, strict=True)]


def lost(window: Sequence[News], read_before: Sequence[datetime | None], lane: int = 0, offset: int = 0) -> list[Lost]:
    """Return what is gone: neither read nor kept. Lanes are read up to a time, if given, and one to an offset."""
    gone = (
        Lost(lane, offset, min(news.kept, news.end)) if news.lane == lane else _lost_of(news, time)
        for news, time in zip(window, read_before, strict=True)
    )
    return [each for each in gone if each and (each.first is None or each.first < each.end)]


def _lost_of(news: News, read_before: datetime | None) -> Lost | None:
    if read_before is None:
        return (
            Lost(news.lane, None, news.kept) if news.unseen else Lost(news.lane, news.first, min(news.kept, news.end))
        )
    was_read = news.deleted_at is None or news.deleted_at < read_before
    return None if was_read or not (news.unseen or news.kept > news.first) else Lost(news.lane, None, news.kept)


def cut(runs: Sequence[Run], limit: int) -> Run:
    """Return the run in which the limit falls, up to it. There is more than that in the runs."""
    totals = list(accumulate(run.end - run.first for run in runs))
    number = bisect_left(totals, limit)
    lane, first, end = runs[number]
    return Run(lane, first, end - (totals[number] - limit))


def stretch(
    rows_until: Callable[[datetime], int], start: datetime, stop: datetime, rows: int, limit: int
) -> datetime | None:
    """Return a time so that about `limit` rows lie before it: some, and at most twice as many if that can be.

    None: everything that is left. Rows are taken to be spread evenly at first; then the guess is corrected.
    """
    low, high = start, stop
    guess = start + (stop - start) * (limit / rows)
    for _ in range(PROBES):
        found = rows_until(guess)
        if 0 < found <= 2 * limit:
            return guess
        low, high = (guess, high) if found == 0 else (low, guess)
        if high - low <= SHORTEST_STRETCH:
            break
        guess = low + (high - low) / 2
    return high if high < stop else None


def pack(runs: Sequence[Run], *, cores: int, max_rows: int | None, min_tasks: int | None) -> list[list[Run]]:
    """Share runs out to tasks. A lane is split only on demand: its order holds within a task, not between tasks."""
    rows = count(runs)
    if not rows:
        return []
    tasks = max(min_tasks or 0, -(-rows // max_rows) if max_rows else 0)
    if tasks:
        return list(_fill(runs, -(-rows // tasks), split=True))
    tasks = max(min(cores, -(-rows // FEW)), -(-rows // MANY))
    return list(_fill(runs, -(-rows // tasks), split=False))


FEW, MANY = 10_000, 250_000  # starting a task costs as much as reading thousands of rows


def _fill(runs: Sequence[Run], size: int, *, split: bool) -> Iterator[list[Run]]:
    task: list[Run] = []
    room = size
    for run in _pieces(runs, size) if split else runs:
        task.append(run)
        room -= run.end - run.first
        if room <= 0:
            yield task
            task, room = [], size
    if task:
        yield task


def _pieces(runs: Iterable[Run], size: int) -> Iterator[Run]:
    """Split runs so that pieces fill up bins of this size exactly."""
    room = size
    for lane, first, end in runs:
        at = first
        while at < end:
            step = min(room, end - at)
            yield Run(lane, at, at + step)
            at, room = at + step, (room - step) or size


def chunks(runs: Sequence[Run], size: int) -> list[list[Run]]:
    """Split runs into what is asked for at once."""
    return list(_fill(runs, size, split=True))
