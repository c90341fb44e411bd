"""The runs between two positions, cut by a limit and packed into tasks, without Spark and without a database."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skep.spark import runs as runs_module
from skep.spark import window
from skep.spark.log import WindowRow
from skep.spark.position import Cut
from skep.spark.runs import DeletedRun, Run, count

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=20).map(
    lambda pairs: [Run(id_, first, first + rows) for id_, (first, rows) in enumerate(pairs, 1)]
)


def row(id_: int, first: int, end: int, kept: int = 0, *, unseen: bool = False, deleted_at: datetime | None = None):
    return WindowRow(id_, first, end, kept, unseen, deleted_at)


def cut(since: datetime | None, until: datetime | None, partition_id: int = 0, offset: int = 0) -> Cut:
    return Cut("1:1:", since and since.isoformat(), until and until.isoformat(), partition_id, offset)


def offsets(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.partition_id, at) for run in runs for at in range(run.first, run.end)]


@given(RUNS, st.integers(1, 8), st.none() | st.integers(1, 30), st.none() | st.integers(1, 30))
def test_packing_changes_nothing(runs: list[Run], cores: int, max_rows: int | None, min_tasks: int | None):
    tasks = runs_module.pack(runs, cores=cores, max_rows=max_rows, min_tasks=min_tasks)
    assert [each for task in tasks for each in offsets(task)] == offsets(runs)
    rows = count(runs)
    assert all(tasks)
    if max_rows:
        assert all(count(task) <= max_rows for task in tasks)
    elif min_tasks:
        assert len(tasks) <= min_tasks
        assert len(tasks) >= min(min_tasks, rows) // 2
    else:
        assert len(tasks) <= cores
        assert all(run in runs for task in tasks for run in task), "a run was split without need"


def test_small_batches_are_one_task_and_large_ones_many():
    def tasks(rows: int) -> int:
        partitions = [Run(id_, 0, rows // 100) for id_ in range(100)]
        return len(runs_module.pack(partitions, cores=2, max_rows=None, min_tasks=None))

    assert [tasks(100), tasks(10_000), tasks(30_000), tasks(1_000_000)] == [1, 1, 2, 4]


@given(RUNS, st.integers(1, 30))
def test_chunks_are_full(runs: list[Run], size: int):
    parts = runs_module.chunks(runs, size)
    assert [each for part in parts for each in offsets(part)] == offsets(runs)
    assert all(count(part) == size for part in parts[:-1])


@given(RUNS.filter(bool), st.data())
def test_a_cut_is_at_the_limit(runs: list[Run], data: st.DataObject):
    limit = data.draw(st.integers(1, count(runs)))
    at = window.run_at_limit(runs, limit)
    before = [
        each for each in offsets(runs) if each[0] < at.partition_id or (each[0] == at.partition_id and each[1] < at.end)
    ]
    assert len(before) == limit


def test_offsets_at_a_cut():
    """Partitions below that of the cut are read to the end of the time slice, those above to its beginning."""
    rows = [row(1, 0, 9), row(2, 0, 9), row(3, 0, 9)]
    assert window.offsets_at_cut(rows, cut(None, None, 2, 5), [1, 2, 3], [6, 7, 8]) == [6, 5, 3]
    assert window.offsets_at_cut(rows, cut(None, None), [1, 2, 3], [6, 7, 8]) == [1, 2, 3]


def test_offsets_of_a_time_are_limited_to_the_window():
    rows = [row(1, 5, 9), row(2, 5, 9), row(3, 5, 9)]
    assert window.clamp(rows, [0, 7, 99], default="end") == [5, 7, 9]
    assert window.clamp(rows, None, default="first") == [5, 5, 5]
    assert window.clamp(rows, None, default="end") == [9, 9, 9]


def test_deleted_messages_are_read_only_from_an_archive():
    rows = [row(1, 0, 9, kept=4), row(2, 0, 3, kept=5)]
    assert window.runs_between(rows, [0, 0], [9, 3]) == [Run(1, 4, 9)]
    assert window.runs_between(rows, [0, 0], [9, 3], archive=True) == [Run(1, 0, 9), Run(2, 0, 3)]


@pytest.mark.parametrize(
    ("partition", "read_before", "deleted"),
    [
        (row(1, 5, 9, kept=5), None, []),
        (row(1, 5, 9, kept=7), None, [DeletedRun(1, 5, 7)]),
        (row(1, 5, 9, kept=20), None, [DeletedRun(1, 5, 9)]),
        (row(1, 7, 7, kept=7, unseen=True), None, [DeletedRun(1, None, 7)]),
        (row(1, 5, 9, kept=7, deleted_at=NOON), NOON + timedelta(1), []),
        (row(1, 5, 9, kept=7, deleted_at=NOON), NOON, [DeletedRun(1, None, 7)]),
        (row(1, 5, 9, kept=5, deleted_at=NOON), NOON, []),
    ],
)
def test_deleted_runs(partition: WindowRow, read_before: datetime | None, deleted: list[DeletedRun]):
    """Messages that were read before they were deleted do not count; a cut above the partition says until when."""
    assert window.deleted_runs([partition], cut(None, read_before, 9) if read_before else None) == deleted
    assert window.deleted_runs([partition], cut(read_before, None)) == deleted


@pytest.mark.parametrize(("offset", "deleted"), [(6, [DeletedRun(1, 6, 7)]), (7, []), (8, [])])
def test_deleted_runs_in_the_partition_of_a_cut(offset: int, deleted: list[DeletedRun]):
    assert window.deleted_runs([row(1, 5, 9, kept=7, deleted_at=NOON)], cut(NOON, NOON, 1, offset)) == deleted


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=200), st.integers(1, 50))
def test_a_time_slice_has_some_rows_and_not_too_many(seconds: list[int], limit: int):
    times = sorted(NOON + timedelta(seconds=each) for each in seconds)

    def rows_before(time: datetime) -> int:
        return sum(each < time for each in times)

    until = window.end_of_slice(rows_before, times[0], times[-1], len(times), limit)
    if until is None:
        assert rows_before(times[-1]) <= 2 * limit or times[0] == times[-1] or rows_before(times[-1]) == 0
    else:
        crowd = max(times.count(each) for each in times)
        assert 0 < rows_before(until) <= max(2 * limit, 2 * limit + crowd)
