"""Where a stream is: the offset that Spark keeps in its checkpoint. Small, however many partitions there are.

    {"snapshot": S}                  everything visible in S is read
    {"start": place}                 nothing is read yet: what lies before the place is not asked for
    … and {"cut": {"view": E, …}}    and a part of what is new in the later snapshot E, which a row limit has cut

A cut window is read in stretches of time, [since, until), and within a stretch lane by lane: below `lane` it is read up
to `until`, in `lane` up to `offset`, above it up to `since`. So a backlog comes in about the order of time, as
watermarks need it. Time never decreases within a lane, so what is read is a run of each lane, as with a snapshot.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from skep.errors import Conflict

REMEDY = (
    "Begin anew with an empty checkpoint and startingTimestamp or startingOffsets: transaction ids, which the "
    "checkpoint counts by, mean nothing in another database, nor after a promotion or a restore of this one."
)


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of the window up to `view` is read."""

    view: str
    since: str | None
    until: str | None
    lane: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """One of `snapshot` and `start` is given; `database` and `queues` say what they are about."""

    database: str
    queues: str
    snapshot: str | None = None
    start: Mapping[str, Any] | None = None
    cut: Cut | None = None

    def to_json(self) -> dict[str, Any]:
        """Spark compares offsets as text: the same position is always the same text."""
        return {name: value for name, value in sorted(asdict(self).items()) if value is not None}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> Self:
        cut = offset.get("cut")
        return cls(
            offset["database"],
            offset["queues"],
            offset.get("snapshot"),
            offset.get("start"),
            None if cut is None else Cut(**cut),
        )

    def at(self, snapshot: str) -> Self:
        return type(self)(self.database, self.queues, snapshot)

    def with_cut(self, cut: Cut) -> Self:
        return type(self)(self.database, self.queues, self.snapshot, self.start, cut)

    def check(self, database: str, queues: str, newest: str) -> None:
        """Refuse a checkpoint of another database, of other queues, or of a future that a restored backup forgot."""
        if self.database != database:
            raise Conflict(f"the checkpoint belongs to database {self.database}, this is {database}", hint=REMEDY)
        if self.queues != queues:
            raise Conflict(
                "the checkpoint belongs to a stream of other queues",
                hint="Give subscribe, subscribePattern, namespace and task as they were, or another checkpoint.",
            )
        known = [view for view in (self.snapshot, self.cut and self.cut.view) if view is not None]
        if any(_xmax(view) > _xmax(newest) for view in known):
            raise Conflict(
                "the checkpoint is ahead of the database, which has been restored from a backup", hint=REMEDY
            )


def _xmax(snapshot: str) -> int:
    return int(snapshot.split(":")[1])
