"""What retention has deleted and the archive still has."""

from collections.abc import Sequence

from skep.errors import DataLoss
from skep.spark.database import LANE_NAMES, Database
from skep.spark.window import Lost, Run

HINT = (
    "Set failOnDataLoss=false to go on behind them. So that it does not happen again: give the stream a groupId, "
    "which retention waits for, or the queue retain_until_archived and the stream option archive."
)
SHOWN = 5


def archived(database: Database, archive: str | None, gone: Sequence[Lost]) -> list[Run]:
    """Return the runs that the archive has of what is gone; raise DataLoss for what is nowhere."""
    if not gone:
        return []
    # The seam of the archive: with one, its manifest is asked here, and the reader reads the runs it answers with.
    raise DataLoss(describe(database, archive, gone), hint=HINT)


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
    count = gone.end - gone.first
    return f"offset {gone.first}" if count == 1 else f"offsets {gone.first} to {gone.end - 1} ({count} messages)"
