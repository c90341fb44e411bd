"""Messages that retention has deleted from the log and the archive still has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from skep.errors import DataLoss
from skep.spark.database import ARCHIVED_RUNS, PARTITION_NAMES, SparkDatabase
from skep.spark.parquet import ArchiveStore
from skep.spark.runs import DeletedRun, Run, as_arguments, count

HINT = (
    "Set failOnDataLoss=false to continue after them. To prevent it, give the stream a groupId, which retention waits "
    "for; or set the queue option retain_until_archived and the stream option archive."
)
SHOWN = 5
ATTEMPTS = 5
READ_COLUMNS = (
    "partition_id", "offset", "timestamp", "value", "headers", "transaction_id", "trace_id", "producer",
)  # fmt: skip
Row = tuple[Any, ...]  # a row of `skep._read`
Names = dict[int, tuple[str, str]]


class ArchivedRun(NamedTuple):
    """A row of `skep._archived_runs`: a run, and the file that has it."""

    partition_id: int
    queue: str
    partition: str
    first: int
    end: int
    path: str


def find_archived(database: SparkDatabase, archive: str | None, deleted: Sequence[DeletedRun]) -> list[ArchivedRun]:
    """Return the files that have deleted messages. Raise DataLoss if the archive does not have all of them."""
    found = _find(database, archive, deleted)
    missing = list(_missing(deleted, found))
    if missing:
        raise DataLoss(describe(database, archive, missing), hint=HINT)
    return found


def read_archived(
    database: SparkDatabase,
    archive: str | None,
    deleted: Sequence[DeletedRun],
    ords: Mapping[int, int],
    *,
    strict: bool,
) -> tuple[list[Row], Names]:
    """Read deleted messages from the archive. Return them with the names of their partitions.

    With `strict` this raises DataLoss if the archive does not have all of them.
    """
    find = find_archived if strict else _find
    for left in reversed(range(ATTEMPTS)):
        found = find(database, archive, deleted)
        try:
            return list(_rows(archive, found, ords)), {run.partition_id: (run.queue, run.partition) for run in found}
        except FileNotFoundError as error:  # the file has just been compacted, without a grace period, into another one
            if not left:
                raise DataLoss(f"a file of the archive {archive} does not exist: {error}") from None
    raise AssertionError("unreachable")


def _rows(archive: str | None, found: Sequence[ArchivedRun], ords: Mapping[int, int]) -> Iterator[Row]:
    runs: dict[str, list[Run]] = {}
    for run in found:
        runs.setdefault(run.path, []).append(Run(run.partition_id, run.first, run.end))
    for path in sorted(runs):
        table = ArchiveStore.at(archive or "").runs(path, runs[path])
        if table.num_rows != count(runs[path]):
            raise DataLoss(f"{path} of the archive {archive} does not have the messages that were archived in it")
        columns = [table.column(name).to_pylist() for name in READ_COLUMNS]
        for partition_id, offset, time, value, *texts in zip(*columns, strict=True):
            yield ords[partition_id], offset, time, value is None, value, *texts


def _find(database: SparkDatabase, archive: str | None, deleted: Sequence[DeletedRun]) -> list[ArchivedRun]:
    known = [run for run in deleted if run.first is not None]
    if archive is None or not known:
        return []
    return [ArchivedRun(*row) for row in database.rows(ARCHIVED_RUNS, **as_arguments(known))]


def _missing(deleted: Sequence[DeletedRun], found: Sequence[ArchivedRun]) -> Iterator[DeletedRun]:
    """Yield the messages that no file has. A run whose first offset is unknown counts as missing."""
    archived: dict[int, list[ArchivedRun]] = {}
    for run in found:
        archived.setdefault(run.partition_id, []).append(run)
    for run in deleted:
        at = run.first
        if at is None:
            yield run
            continue
        for part in archived.get(run.partition_id, ()):
            if part.first > at and part.first < run.end:
                yield DeletedRun(run.partition_id, at, part.first)
            at = max(at, min(part.end, run.end))
        if at < run.end:
            yield DeletedRun(run.partition_id, at, run.end)


def describe(database: SparkDatabase, archive: str | None, deleted: Sequence[DeletedRun]) -> str:
    """Return a message that names the first of the deleted runs."""
    names = database.rows(PARTITION_NAMES, partition_ids=[run.partition_id for run in deleted[:SHOWN]])
    shown = [f"{_name(name, run)}: {_offsets(run)}" for run, name in zip(deleted, names, strict=False)]
    more = f"; and {len(deleted) - SHOWN} more partitions" if len(deleted) > SHOWN else ""
    where = "and no archive is set" if archive is None else f"and the archive {archive} does not have them"
    return f"messages were deleted before they were read, {where}: {'; '.join(shown)}{more}"


def _name(name: tuple[str | None, str | None], run: DeletedRun) -> str:
    queue, partition = name
    if queue is None:
        return f"a deleted partition (id {run.partition_id})"
    return f'queue "{queue}", partition "{partition}"'


def _offsets(run: DeletedRun) -> str:
    if run.first is None:
        return f"up to offset {run.end - 1}"
    number = run.end - run.first
    return f"offset {run.first}" if number == 1 else f"offsets {run.first} to {run.end - 1} ({number} messages)"
