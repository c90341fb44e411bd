"""What retention has deleted and the archive still has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from skep.errors import DataLoss
from skep.spark.database import ARCHIVED_RUNS, LANE_NAMES, Database
from skep.spark.parquet import Store
from skep.spark.window import Lost, Run, count

HINT = (
    "Set failOnDataLoss=false to go on behind them. So that it does not happen again: give the stream a groupId, "
    "which retention waits for, or the queue retain_until_archived and the stream option archive."
)
SHOWN = 5
ATTEMPTS = 5


Row = tuple[Any, ...]  # as `skep.read` gives it
Names = dict[int, tuple[str, str]]


class Kept(NamedTuple):
    """A row of `skep.archived_runs`: a run of a lane, and the file that has it."""

    lane: int
    queue: str
    partition: str
    first: int
    end: int
    path: str


def archived(database: Database, archive: str | None, gone: Sequence[Lost]) -> list[Kept]:
    """Return where the archive has what is gone; raise DataLoss for what is nowhere."""
    found = _find(database, archive, gone)
    nowhere = list(_uncovered(gone, found))
    if nowhere:
        raise DataLoss(describe(database, archive, nowhere), hint=HINT)
    return found


def recall(
    database: Database, archive: str | None, gone: Sequence[Lost], ords: Mapping[int, int], *, strict: bool
) -> tuple[list[Row], Names]:
    """Read from the archive what is gone, with the names of its lanes. `strict`: all of it must be there."""
    look = archived if strict else _find
    for left in reversed(range(ATTEMPTS)):
        found = look(database, archive, gone)
        try:
            return list(_rows(archive, found, ords)), {kept.lane: (kept.queue, kept.partition) for kept in found}
        except FileNotFoundError as error:  # compacted a moment ago, without a grace: it is in another file now
            if not left:
                raise DataLoss(f"a file of the archive {archive} is not there: {error}") from None
    raise AssertionError("unreachable")


def _rows(archive: str | None, found: Sequence[Kept], ords: Mapping[int, int]) -> Iterator[Row]:
    runs: dict[str, list[Run]] = {}
    for kept in found:
        runs.setdefault(kept.path, []).append(Run(kept.lane, kept.first, kept.end))
    for path in sorted(runs):
        table = Store.at(archive or "").runs(path, runs[path])
        if table.num_rows != count(runs[path]):
            raise DataLoss(f"{path} of the archive {archive} does not have what was archived in it")
        columns = [table.column(name).to_pylist() for name in READ_COLUMNS]
        for lane, offset, time, value, *texts in zip(*columns, strict=True):
            yield ords[lane], offset, time, value is None, value, *texts


READ_COLUMNS = (
    "partition_id", "offset", "timestamp", "value", "headers", "transaction_id", "trace_id", "producer",
)  # fmt: skip


def _find(database: Database, archive: str | None, gone: Sequence[Lost]) -> list[Kept]:
    known = [each for each in gone if each.first is not None]
    if archive is None or not known:
        return []
    lanes, firsts, ends = ([each.lane for each in known], [each.first for each in known], [each.end for each in known])
    return [Kept(*row) for row in database.rows(ARCHIVED_RUNS, lanes=lanes, firsts=firsts, ends=ends)]


def _uncovered(gone: Sequence[Lost], found: Sequence[Kept]) -> Iterator[Lost]:
    """Yield what no file has; of what is not known exactly, that is all."""
    by_lane: dict[int, list[Kept]] = {}
    for kept in found:
        by_lane.setdefault(kept.lane, []).append(kept)
    for each in gone:
        at = each.first
        if at is None:
            yield each
            continue
        for kept in by_lane.get(each.lane, ()):
            if kept.first > at and kept.first < each.end:
                yield Lost(each.lane, at, kept.first)
            at = max(at, min(kept.end, each.end))
        if at < each.end:
            yield Lost(each.lane, at, each.end)


def describe(database: Database, archive: str | None, gone: Sequence[Lost]) -> str:
    names = database.rows(LANE_NAMES, lanes=[each.lane for each in gone[:SHOWN]])
    shown = [f"{_name(name, each)}: {_offsets(each)}" for each, name in zip(gone, names, strict=False)]
    more = f"; and {len(gone) - SHOWN} more partitions" if len(gone) > SHOWN else ""
    where = "and there is no archive" if archive is None else f"and the archive {archive} does not have them"
    return f"messages were deleted before they were read, {where}: {'; '.join(shown)}{more}"


def _name(name: tuple[str | None, str | None], gone: Lost) -> str:
    queue, partition = name
    return f"a deleted partition (id {gone.lane})" if queue is None else f'queue "{queue}", partition "{partition}"'


def _offsets(gone: Lost) -> str:
    if gone.first is None:
        return f"up to offset {gone.end - 1}"
    number = gone.end - gone.first
    return f"offset {gone.first}" if number == 1 else f"offsets {gone.first} to {gone.end - 1} ({number} messages)"
