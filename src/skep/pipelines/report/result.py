"""The results of an analysis."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The tables of the measures, by name, and the current state of the groups, for a time range."""

    made_at: datetime
    since: datetime | None
    until: datetime | None
    queues: list[str]
    steps: Mapping[str, int]  # seconds of a bucket of messages, samples and leases
    tables: Mapping[str, list[Row]]
    groups: list[Row]
    unlogged: list[str]  # queues whose leases are not logged

    @property
    def messages(self) -> int:
        return sum(row["messages"] for row in self.tables["throughput"])

    def of(self, table: str, queue: str, group: str | None = None) -> Row | None:
        """Return the row of a queue, or of a group on it."""
        rows = (row for row in self.tables[table] if row["queue"] == queue)
        return next((row for row in rows if group is None or row["group_name"] == group), None)
