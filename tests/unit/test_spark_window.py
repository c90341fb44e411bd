"""What lies between two positions, cut and packed: arithmetic, without Spark and without a database."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.spark import window
from skep.spark.window import Lost, News, Run

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20).map(
    lambda pairs: [Run(lane, first, first + rows) for lane, (first, rows) in enumerate(pairs, 1)]
)


def news(lane: int, first: int, end: int, kept: int = 0, *, unseen: bool = False, deleted_at: datetime | None = None):
    return News(lane, first, end, kept, unseen, deleted_at)


def offsets(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.lane, at) for run in runs for at in range(run.first, run.end)]


@given(RUNS, st.integers(1, 8), st.none() | st.integers(1, 30), st.none() | st.integers(1, 30))
def test_packing_changes_nothing(runs: list[Run], cores: int, max_rows: int | None, min_tasks: int | None):
    tasks = window.pack(runs, cores=cores, max_rows=max_rows, min_tasks=min_tasks)
    assert [each for task in tasks for each in offsets(task)] == offsets(runs)
    rows = window.count(runs)
    assert all(tasks)
    if max_rows:
        assert all(window.count(task) <= max_rows for task in tasks)
    elif min_tasks:
        assert len(tasks) <= min_tasks
        assert len(tasks) >= min(min_tasks, rows) // 2
    else:
        assert len(tasks) <= cores
        assert all(run in runs for task in tasks for run in task), "a lane was split that nobody asked to split"


def test_small_batches_are_one_task_and_large_ones_many():
    def tasks(rows: int) -> int:
        lanes = [Run(lane, 0, rows // 100) for lane in range(100)]
        return len(window.pack(lanes, cores=2, max_rows=None, min_tasks=None))

    assert [tasks(100), tasks(10_000), tasks(30_000), tasks(1_000_000)] == [1, 1, 2, 4]


@given(RUNS, st.integers(1, 30))
def test_chunks_are_full(runs: list[Run], size: int):
    pieces = window.chunks(runs, size)
    assert [each for piece in pieces for each in offsets(piece)] == offsets(runs)
    assert all(window.count(piece) == size for piece in pieces[:-1])


@given(RUNS.filter(bool), st.data())
def test_a_cut_is_at_the_limit(runs: list[Run], data: st.DataObject):
    limit = data.draw(st.integers(1, window.count(runs)))
    at = window.cut(runs, limit)
    before = [each for each in offsets(runs) if each[0] < at.lane or (each[0] == at.lane and each[1] < at.end)]
    assert len(before) == limit


def test_progress_of_a_cut():
    """Below the lane it is read to the end of the stretch, above it to its beginning."""
    lanes = [news(1, 0, 9), news(2, 0, 9), news(3, 0, 9)]
    assert window.progress(lanes, 2, 5, [1, 2, 3], [6, 7, 8]) == [6, 5, 3]
    assert window.progress(lanes, 0, 0, [1, 2, 3], [6, 7, 8]) == [1, 2, 3]


def test_a_time_falls_into_the_window():
    lanes = [news(1, 5, 9), news(2, 5, 9), news(3, 5, 9)]
    assert window.bounds(lanes, [0, 7, 99], otherwise="end") == [5, 7, 9]
    assert window.bounds(lanes, None, otherwise="first") == [5, 5, 5]
    assert window.bounds(lanes, None, otherwise="end") == [9, 9, 9]


def test_what_is_gone_is_not_read():
    assert window.between([news(1, 0, 9, kept=4), news(2, 0, 3, kept=5)], [0, 0], [9, 3]) == [Run(1, 4, 9)]


@pytest.mark.parametrize(
    ("lane", "read_before", "gone"),
    [
        (news(1, 5, 9, kept=5), None, []),
        (news(1, 5, 9, kept=7), None, [Lost(1, 5, 7)]),
        (news(1, 5, 9, kept=20), None, [Lost(1, 5, 9)]),
        (news(1, 7, 7, kept=7, unseen=True), None, [Lost(1, None, 7)]),
        (news(1, 5, 9, kept=7, deleted_at=NOON), NOON + timedelta(1), []),
        (news(1, 5, 9, kept=7, deleted_at=NOON), NOON, [Lost(1, None, 7)]),
        (news(1, 5, 9, kept=5, deleted_at=NOON), NOON, []),
    ],
)
def test_what_is_lost(lane: News, read_before: datetime | None, gone: list[Lost]):
    """Neither read nor kept; what was deleted after it was read is not lost."""
    assert window.lost([lane], [read_before]) == gone


@pytest.mark.parametrize(("offset", "gone"), [(6, [Lost(1, 6, 7)]), (7, []), (8, [])])
def test_what_is_lost_in_the_lane_of_a_cut(offset: int, gone: list[Lost]):
    assert window.lost([news(1, 5, 9, kept=7, deleted_at=NOON)], [NOON], 1, offset) == gone


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=200), st.integers(1, 50))
def test_a_stretch_of_time_has_some_rows_and_not_too_many(seconds: list[int], limit: int):
    times = sorted(NOON + timedelta(seconds=each) for each in seconds)

    def rows_until(time: datetime) -> int:
        return sum(each < time for each in times)

    until = window.stretch(rows_until, times[0], times[-1], len(times), limit)
    if until is None:
        assert rows_until(times[-1]) <= 2 * limit or times[0] == times[-1] or rows_until(times[-1]) == 0
    else:
        crowd = max(times.count(each) for each in times)
        assert 0 < rows_until(until) <= max(2 * limit, 2 * limit + crowd)
