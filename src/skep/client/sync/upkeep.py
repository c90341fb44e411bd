# Generated from src/skep/client/aio/upkeep.py by `make format`. Change that file.
"""The calls of upkeep, for callers that want to make them themselves, and maintenance mode."""

from collections.abc import Sequence
from datetime import timedelta

from skep.client import calls
from skep.client.sync.database import Database
from skep.message import (
    CurrentProgress,
    MaintenanceStatus,
    OutboxStatus,
    RetentionDeletion,
    RetentionResult,
    Sample,
    SilentGroup,
    StoreResult,
)
from skep.schedule import AppendResult

PARTITIONS = 200  # in one transaction
MESSAGES = 10_000  # deleted by one transaction


def _pair(due: list[int], idle: list[int]) -> tuple[list[int], list[int]]:
    return due, idle


class UpkeepCalls:
    """The client's calls for upkeep. Any number of processes may make them at the same time."""

    _database: Database

    def partitions_after(self, partition_id: int, limit: int) -> list[int]:
        """Return the next `limit` partitions with a retention rule, after `partition_id`."""
        return self._database.value(calls.PARTITIONS_AFTER, {"partition_id": partition_id, "limit": limit})

    def retain(
        self, partitions: Sequence[int] | None = None, *, max_messages: int = MESSAGES, dry_run: bool = False
    ) -> list[RetentionDeletion]:
        """Delete messages that the retention rules allow, at most `max_messages`. Return the deleted runs."""
        chosen = None if partitions is None else list(partitions)
        arguments = {"partitions": chosen, "max_messages": max_messages, "dry_run": dry_run}
        return self._database.call(calls.RETAIN, arguments, RetentionDeletion)

    def retain_all(self) -> RetentionResult:
        """Delete all messages that the retention rules allow, in small transactions, and drop idle partitions."""
        last = messages = missed = 0
        while partitions := self.partitions_after(last, PARTITIONS):
            last = partitions[-1]
            deleted = self._retain_partitions(partitions)
            messages += deleted.messages
            missed += deleted.missed
        return RetentionResult(messages, missed, self.drop_idle_partitions())

    def retain_due(self) -> RetentionResult:
        """Do the same for partitions with new messages, and for the next few thousand of the others.

        Upkeep calls it every few seconds, and over time visits every partition.
        """
        [(due, idle)] = self._database.call(calls.PARTITIONS_DUE, {}, _pair)
        messages = missed = 0
        for first in range(0, len(due), PARTITIONS):
            deleted = self._retain_partitions(due[first : first + PARTITIONS])
            messages += deleted.messages
            missed += deleted.missed
        return RetentionResult(messages, missed, self.drop_idle_partitions(idle) if idle else 0)

    def _retain_partitions(self, partitions: Sequence[int]) -> RetentionResult:
        """Delete all messages of these partitions that the retention rules allow."""
        messages = missed = 0
        deleted = MESSAGES
        while deleted >= MESSAGES:  # there may be more
            done = self.retain(partitions, max_messages=MESSAGES)
            deleted = sum(row.messages for row in done)
            messages += deleted
            missed += sum(row.missed for row in done)
        return RetentionResult(messages, missed, 0)

    def drop_idle_partitions(self, partitions: Sequence[int] | None = None) -> int:
        """Drop partitions that are empty and have been idle for longer than their queue's `drop_idle_seconds`."""
        chosen = None if partitions is None else list(partitions)
        return self._database.value(calls.DROP_IDLE_PARTITIONS, {"partitions": chosen})

    def mark_archived(self, partition_id: int, end_offset: int) -> None:
        """Record that all messages below this offset are archived, so that retention may delete them."""
        self._database.value(calls.MARK_ARCHIVED, {"partition_id": partition_id, "end_offset": end_offset})

    def expire_leases(self) -> None:
        """End expired leases, without waiting for the next pop of their group."""
        self._database.value(calls.EXPIRE_LEASES, {})

    def detect_dead_groups(self) -> list[SilentGroup]:
        """Return the groups with overdue heartbeats, and declare those dead that reached their limit."""
        return self._database.call(calls.DETECT_DEAD_GROUPS, {}, SilentGroup)

    def prune_journal(self, older_than: timedelta = timedelta(minutes=10)) -> int:
        return self._database.value(calls.PRUNE_JOURNAL, {"older_than": older_than})

    def sample(self) -> int:
        """Record the last offsets and the cursors. Return the number of samples."""
        return self._database.value(calls.SAMPLE, {})

    def prune_samples(self, keep: timedelta = timedelta(days=7)) -> int:
        return self._database.value(calls.PRUNE_SAMPLES, {"keep": keep})

    def prune_sinks(self, older_than: timedelta = timedelta(days=1)) -> int:
        """Delete rows that a batch of Spark staged and never published. Return how many."""
        return self._database.value(calls.PRUNE_SINKS, {"older_than": older_than})

    def prune_lease_log(self, max_rows: int = 100_000) -> int:
        """Delete finished leases older than the `lease_log_seconds` of their queue, at most `max_rows`."""
        return self._database.value(calls.PRUNE_LEASE_LOG, {"max_rows": max_rows})

    def prune_traces(self, keep: timedelta = timedelta(days=7)) -> int:
        return self._database.value(calls.PRUNE_TRACES, {"keep": keep})

    def maintenance(self) -> MaintenanceStatus:
        """Return the state of maintenance mode, and how many messages are held."""
        (status,) = self._database.call(calls.MAINTENANCE, {}, MaintenanceStatus)
        return status

    def set_maintenance(self, *, push: bool | None = None, pop: bool | None = None) -> None:
        """Let the servers hold pushes or pause pops. None changes nothing. Direct clients of the database go on."""
        self._database.value(calls.SET_MAINTENANCE, {"push": push, "pop": pop})

    def drain_held_pushes(self, *, again: bool = False) -> StoreResult:
        """Store a number of held pushes, if maintenance mode has ended. With `again`, retry refused ones, too."""
        (drained,) = self._database.call(calls.DRAIN_HELD_PUSHES, {"again": again}, StoreResult)
        if drained.messages:
            self._wake_consumers(set(drained.queues))
        return drained

    def _wake_consumers(self, queues: set[str]) -> None:
        raise NotImplementedError

    def move_committed_outbox(self, max_rows: int = MESSAGES) -> StoreResult:
        """Publish outbox rows that were committed under REPEATABLE READ or SERIALIZABLE, at most `max_rows`."""
        (moved,) = self._database.call(calls.MOVE_COMMITTED_OUTBOX, {"max_rows": max_rows}, StoreResult)
        if moved.messages:
            self._wake_consumers(set(moved.queues))
        return moved

    def append_delayed(self, queue: str | None = None, *, max_rows: int = MESSAGES) -> AppendResult:
        """Append due delayed messages to their partitions, at most `max_rows`."""
        (appended,) = self._database.call(calls.APPEND_DELAYED, {"queue": queue, "max_rows": max_rows}, AppendResult)
        if appended.messages:
            self._wake_consumers(set(appended.queues))
        return appended

    def outbox_status(self) -> OutboxStatus:
        """Return the status of the outbox: open transactions and unpublished rows."""
        (status,) = self._database.call(calls.OUTBOX_STATUS, {}, OutboxStatus)
        return status

    def history(self, queue: str, group: str = "", since: timedelta = timedelta(hours=1)) -> list[Sample]:
        """Return rates and lags over time, of a queue or of a group on it."""
        return self._database.call(calls.HISTORY, {"queue": queue, "group": group, "since": since}, Sample)

    def current_progress(
        self, *, trends: int = 0, not_within: timedelta = timedelta(seconds=5)
    ) -> list[CurrentProgress]:
        """Return the progress of every queue and group, the largest lag first. The first `trends` groups have a trend.

        It takes a sample, unless the last one is younger than `not_within`.
        """
        return self._database.call(
            calls.CURRENT_PROGRESS, {"trends": trends, "not_within": not_within}, CurrentProgress
        )

    def oldest_transaction(self) -> float | None:
        """Return the age in seconds of the oldest other transaction. PostgreSQL cannot remove rows that it may see."""
        return self._database.value(calls.OLDEST_TRANSACTION, {})
