"""What keeps the log in order: the calls that upkeep makes by itself, for those who want to make them by hand."""

from collections.abc import Sequence
from datetime import timedelta

from skep.client import calls
from skep.client.aio.database import AsyncDatabase
from skep.message import Detected, Drained, MaintenanceStatus, OutboxStatus, Place, Retained, Sample, Swept

LANES = 200  # partitions in one transaction
MESSAGES = 10_000  # deleted by one transaction


def _pair(due: list[int], idle: list[int]) -> tuple[list[int], list[int]]:
    return due, idle


class AsyncMaintenance:
    """Retention, detection of dead groups, samples: safe to run anywhere, any number of times at once."""

    _database: AsyncDatabase

    async def lanes_after(self, lane: int, limit: int) -> list[int]:
        """Return the next partitions of queues with a retention rule, for visiting all of them in small steps."""
        return await self._database.value(calls.LANES_AFTER, {"lane": lane, "limit": limit})

    async def retain(
        self, lanes: Sequence[int] | None = None, *, max_messages: int = MESSAGES, dry_run: bool = False
    ) -> list[Retained]:
        """Delete what retention allows, at most `max_messages` in all; return what was deleted, and who missed it."""
        arguments = {"lanes": None if lanes is None else list(lanes), "max_messages": max_messages, "dry_run": dry_run}
        return await self._database.call(calls.RETAIN, arguments, Retained)

    async def sweep(self) -> Swept:
        """Delete all that retention allows, in small transactions, and drop partitions that are idle."""
        last = messages = missed = 0
        while partitions := await self.lanes_after(last, LANES):
            last = partitions[-1]
            deleted = await self._retain_all(partitions)
            messages += deleted.messages
            missed += deleted.missed
        return Swept(messages, missed, await self.drop_idle_partitions())

    async def sweep_due(self) -> Swept:
        """Do the same for partitions with new messages, and for the next few thousand of the others.

        Upkeep calls it every few seconds; one call after the other visits every partition.
        """
        [(due, idle)] = await self._database.call(calls.PARTITIONS_DUE, {}, _pair)
        messages = missed = 0
        for first in range(0, len(due), LANES):
            deleted = await self._retain_all(due[first : first + LANES])
            messages += deleted.messages
            missed += deleted.missed
        return Swept(messages, missed, await self.drop_idle_partitions(idle) if idle else 0)

    async def _retain_all(self, partitions: Sequence[int]) -> Swept:
        """Delete all that retention allows in these partitions."""
        messages = missed = 0
        deleted = MESSAGES
        while deleted >= MESSAGES:  # there may be more
            done = await self.retain(partitions, max_messages=MESSAGES)
            deleted = sum(row.messages for row in done)
            messages += deleted
            missed += sum(row.missed for row in done)
        return Swept(messages, missed, 0)

    async def drop_idle_partitions(self, partitions: Sequence[int] | None = None) -> int:
        """Drop partitions that are empty and have been idle for longer than their queue's `drop_idle_seconds`."""
        chosen = None if partitions is None else list(partitions)
        return await self._database.value(calls.DROP_IDLE_PARTITIONS, {"partitions": chosen})

    async def mark_archived(self, partition_id: int, end_offset: int) -> None:
        """Everything below this offset is in the archive: retention that waits for it may go on."""
        await self._database.value(calls.MARK_ARCHIVED, {"partition_id": partition_id, "end_offset": end_offset})

    async def reap(self) -> None:
        """Give back what consumers held that died, without waiting for the next pop of their group."""
        await self._database.value(calls.REAP, {})

    async def detect_dead_groups(self) -> list[Detected]:
        """Look at every group that gave no sign of life for too long; returns the suspects, and who died."""
        return await self._database.call(calls.DETECT_DEAD_GROUPS, {}, Detected)

    async def prune_journal(self, older_than: timedelta = timedelta(minutes=10)) -> int:
        return await self._database.value(calls.PRUNE_JOURNAL, {"older_than": older_than})

    async def sample(self) -> int:
        """Write down heads and cursors."""
        return await self._database.value(calls.SAMPLE, {})

    async def prune_samples(self, keep: timedelta = timedelta(days=7)) -> int:
        return await self._database.value(calls.PRUNE_SAMPLES, {"keep": keep})

    async def prune_sinks(self, older_than: timedelta = timedelta(days=1)) -> int:
        """Forget rows that a batch from Spark had staged and never published; return how many."""
        return await self._database.value(calls.PRUNE_SINKS, {"older_than": older_than})

    async def prune_lease_log(self, max_rows: int = 100_000) -> int:
        """Forget finished leases that are older than their queue's `lease_log_seconds`, at most so many."""
        return await self._database.value(calls.PRUNE_LEASE_LOG, {"max_rows": max_rows})

    async def prune_traces(self, keep: timedelta = timedelta(days=7)) -> int:
        return await self._database.value(calls.PRUNE_TRACES, {"keep": keep})

    async def maintenance(self) -> MaintenanceStatus:
        """Return whether the servers hold pushes or pause pops, and what they hold."""
        (status,) = await self._database.call(calls.MAINTENANCE, {}, MaintenanceStatus)
        return status

    async def set_maintenance(self, *, push: bool | None = None, pop: bool | None = None) -> None:
        """Let the servers hold pushes, or pause pops; None leaves it as it is. Clients of the database go on."""
        await self._database.value(calls.SET_MAINTENANCE, {"push": push, "pop": pop})

    async def drain_held_pushes(self, *, again: bool = False) -> Drained:
        """Store a number of pushes that were held, if push maintenance is over; `again`: also those once refused."""
        (drained,) = await self._database.call(calls.DRAIN_HELD_PUSHES, {"again": again}, Drained)
        if drained.messages:
            self._pushed_again(set(drained.queues))
        return drained

    def _pushed_again(self, queues: set[str]) -> None:
        raise NotImplementedError

    async def move_committed_outbox(self, max_rows: int = MESSAGES) -> Drained:
        """Publish rows of the outbox that were committed under REPEATABLE READ or SERIALIZABLE, at most `max_rows`."""
        (moved,) = await self._database.call(calls.MOVE_COMMITTED_OUTBOX, {"max_rows": max_rows}, Drained)
        if moved.messages:
            self._pushed_again(set(moved.queues))
        return moved

    async def outbox_status(self) -> OutboxStatus:
        """Return what is in the outbox that is not published."""
        (status,) = await self._database.call(calls.OUTBOX_STATUS, {}, OutboxStatus)
        return status

    async def history(self, queue: str, group: str = "", since: timedelta = timedelta(hours=1)) -> list[Sample]:
        """Return rates and lags over time: of a queue, or of a group on it."""
        return await self._database.call(calls.HISTORY, {"queue": queue, "group": group, "since": since}, Sample)

    async def places(self, *, trends: int = 0, not_within: timedelta = timedelta(seconds=5)) -> list[Place]:
        """Return where every queue and group stands, the largest lag first; `trends` groups with what it was before.

        A sample is taken for it, unless there is one that is younger than `not_within`.
        """
        return await self._database.call(calls.PLACES, {"trends": trends, "not_within": not_within}, Place)

    async def oldest_transaction(self) -> float | None:
        """Return for how many seconds the oldest transaction of others has been open: what it may see is kept."""
        return await self._database.value(calls.OLDEST_TRANSACTION, {})
