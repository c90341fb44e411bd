"""The position of a stream: the offset that Spark stores in its checkpoint. Its size does not depend on the partitions.

    {"snapshot": S}                  everything visible in S has been read
    {"start": {…}}                   nothing has been read yet; reading starts here (see `skep._offset_of_start`)
    … and {"cut": {"view": E, …}}    a part of what became visible up to the later snapshot E has been read too, because
                                     a row limit ended the micro-batch

A window that is cut is read in time slices, [since, until), and within a slice by ascending partition id: partitions
below `lane` have been read up to `until`, partition `lane` up to `offset`, and partitions above it up to `since`. A
backlog therefore arrives roughly in the order of time, as watermarks need it. Time never decreases within a partition,
so the messages that have been read are a run of each partition, as they are with a snapshot.

The JSON keys `view` and `lane` are stored in checkpoints and must not change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from skep.errors import Conflict

HINT = (
    "Start with an empty checkpoint and startingTimestamp or startingOffsets. A checkpoint contains transaction ids, "
    "which are not valid in another database, nor after a promotion or a restore of this one."
)


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of the window up to `snapshot` that has been read."""

    snapshot: str
    since: str | None
    until: str | None
    partition_id: int = 0
    offset: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the cut as the checkpoint stores it."""
        return {
            "view": self.snapshot,
            "since": self.since,
            "until": self.until,
            "lane": self.partition_id,
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, cut: Mapping[str, Any]) -> Self:
        return cls(cut["view"], cut["since"], cut["until"], cut["lane"], cut["offset"])


@dataclass(frozen=True, slots=True)
class Position:
    """Either `snapshot` or `start` is set; `database` and `queues` identify the log that the position belongs to."""

    database: str
    queues: str
    snapshot: str | None = None
    start: Mapping[str, Any] | None = None
    cut: Cut | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position as the checkpoint stores it. Spark compares the text, so the keys are sorted."""
        fields = {
            "cut": None if self.cut is None else self.cut.to_json(),
            "database": self.database,
            "queues": self.queues,
            "snapshot": self.snapshot,
            "start": self.start,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Self:
        cut = offset.get("cut")
        return cls(
            offset["database"],
            offset["queues"],
            offset.get("snapshot"),
            offset.get("start"),
            None if cut is None else Cut.from_json(cut),
        )

    def at(self, snapshot: str) -> Self:
        """Return the position at which everything visible in `snapshot` has been read."""
        return type(self)(self.database, self.queues, snapshot)

    def with_cut(self, cut: Cut) -> Self:
        return type(self)(self.database, self.queues, self.snapshot, self.start, cut)

    def check(self, database: str, queues: str, newest: str) -> None:
        """Raise Conflict if the checkpoint belongs to another database or other queues, or is newer than `newest`."""
        if self.database != database:
            raise Conflict(f"the checkpoint belongs to database {self.database}, this is {database}", hint=HINT)
        if self.queues != queues:
            raise Conflict(
                "the checkpoint belongs to a stream of other queues",
                hint="Use the same subscribe, subscribePattern, namespace and task as before, or another checkpoint.",
            )
        known = [snapshot for snapshot in (self.snapshot, self.cut and self.cut.snapshot) if snapshot is not None]
        if any(_xmax(snapshot) > _xmax(newest) for snapshot in known):
            raise Conflict("the checkpoint is ahead of the database, which was restored from a backup", hint=HINT)


def _xmax(snapshot: str) -> int:
    return int(snapshot.split(":")[1])
