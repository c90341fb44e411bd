"""A group whose cursors follow a stream, so that lag and retention include it. The checkpoint stays authoritative."""

import time
from collections.abc import Iterator, Sequence

from skep.spark.database import HEARTBEAT, MOVE_GROUP, SUBSCRIBE
from skep.spark.log import Log, LogSnapshot
from skep.spark.position import Position
from skep.spark.runs import Run, as_arguments
from skep.spark.window import MicroBatches

HEARTBEAT_EVERY = 30.0
DEAD_AFTER = 86400.0  # seconds; a micro-batch may take hours, and so may a restart
AT_ONCE = 10_000


class Follower:
    """Moves a group's cursors to the position of a stream.

    It moves the cursors of the partitions of each micro-batch, and those of all partitions at the start and after a
    seek of the group.
    """

    def __init__(self, log: Log, batches: MicroBatches, group: str) -> None:
        self._log, self._batches, self._group = log, batches, group
        self._at: Position | None = None
        self._expected: tuple[Position | None, list[Run]] = (None, [])
        self._subscription: int | None = None
        self._subscribed: set[str] = set()
        self._heartbeat_at = 0.0

    def expect(self, end: Position, runs: list[Run]) -> None:
        """Remember the runs that lead to a position."""
        self._expected = (end, runs)

    def follow(self, position: Position) -> None:
        """Move the group to a position, and send a heartbeat if one is due."""
        self._send_heartbeat()
        if position == self._at:
            return
        known = self._at is not None and self._expected[0] == position
        before = self._subscription
        self._move(self._expected[1] if known else self._all_partitions(position))
        if known and self._subscription != before:
            self._move(self._all_partitions(position))
        self._at = position

    def _move(self, runs: Sequence[Run]) -> None:
        for number in range(0, max(len(runs), 1), AT_ONCE):
            some = as_arguments(runs[number : number + AT_ONCE])
            (self._subscription,) = self._log.db.one(MOVE_GROUP, group=self._group, **some)

    def _all_partitions(self, position: Position) -> list[Run]:
        """Return an empty run of every partition, at the offset up to which the stream has read it."""
        now = self._log.snapshot()
        self._subscribe(now)
        until = (position.cut and position.cut.snapshot) or position.snapshot or now.snapshot
        ends = {row.partition_id: row.end for row in self._log.window(now, None, None, until)}
        if position.snapshot != until:
            window = self._batches.window(position, until)
            offsets = window.offsets(position.cut)
            ends.update(zip((row.partition_id for row in window.rows), offsets, strict=True))
        return [Run(partition_id, end, end) for partition_id, end in ends.items()]

    def _subscribe(self, now: LogSnapshot) -> None:
        for queue, namespace, task in self._subscriptions(now):
            if f"{queue}" not in self._subscribed:
                self._log.db.rows(
                    SUBSCRIBE, group=self._group, queue=queue, namespace=namespace, task=task, timeout=DEAD_AFTER
                )
                self._subscribed.add(f"{queue}")

    def _subscriptions(self, now: LogSnapshot) -> Iterator[tuple[str | None, str | None, str | None]]:
        """Yield one subscription for a namespace and task, or one for each queue."""
        scope = self._log.options.scope
        if scope.namespace or scope.task:
            yield None, scope.namespace, scope.task
        for queue in scope.queues or (now.queues if scope.pattern else ()):
            yield queue, None, None

    def _send_heartbeat(self) -> None:
        if self._at is not None and time.monotonic() - self._heartbeat_at > HEARTBEAT_EVERY:
            self._log.db.rows(HEARTBEAT, group=self._group)
            self._heartbeat_at = time.monotonic()
