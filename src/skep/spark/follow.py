"""A group that follows a stream, for lag and retention to see where it is. The checkpoint stays the truth."""

import time
from collections.abc import Iterator, Sequence

from skep.spark.database import FOLLOW, HEARTBEAT, SUBSCRIBE
from skep.spark.log import Log, View
from skep.spark.position import Position
from skep.spark.window import News, Run

HEARTBEAT_EVERY = 30.0
DEAD_AFTER = 86400.0  # seconds; a micro-batch may take hours, and so may a restart
AT_ONCE = 10_000


class Follower:
    """Puts a group's cursors where a stream is: lane by lane as it moves, all at the start and after a seek."""

    def __init__(self, log: Log, group: str) -> None:
        self._log, self._group = log, group
        self._at: Position | None = None
        self._expected: tuple[Position | None, list[Run]] = (None, [])
        self._subscription: int | None = None
        self._subscribed: set[str] = set()
        self._beaten_at = 0.0

    def expect(self, end: Position, runs: list[Run]) -> None:
        """Remember what will be read when the stream has come to this position."""
        self._expected = (end, runs)

    def follow(self, position: Position) -> None:
        self._beat()
        if position == self._at:
            return
        known = self._at is not None and self._expected[0] == position
        before = self._subscription
        self._put(self._expected[1] if known else self._everything(position))
        if known and self._subscription != before:
            self._put(self._everything(position))
        self._at = position

    def _put(self, runs: Sequence[Run]) -> None:
        for number in range(0, max(len(runs), 1), AT_ONCE):
            lanes, starts, ends = _columns(runs[number : number + AT_ONCE])
            (self._subscription,) = self._log.db.one(
                FOLLOW, group=self._group, lanes=lanes, starts=starts, offsets=ends
            )

    def _everything(self, position: Position) -> list[Run]:
        """Return where the stream is in every lane; it has read nothing there as far as the group is concerned."""
        view = self._log.view()
        self._subscribe(view)
        until = (position.cut and position.cut.view) or position.snapshot or view.snapshot
        ends = {news.lane: news.end for news in self._log.everything(view, until)}
        if position.snapshot != until:
            found: list[News] = self._log.window(position, until)
            ends.update(zip((news.lane for news in found), self._log.progress(found, position.cut), strict=True))
        return [Run(lane, end, end) for lane, end in ends.items()]

    def _subscribe(self, view: View) -> None:
        for queue, namespace, task in self._scopes(view):
            if f"{queue}" not in self._subscribed:
                self._log.db.rows(
                    SUBSCRIBE, group=self._group, queue=queue, namespace=namespace, task=task, timeout=DEAD_AFTER
                )
                self._subscribed.add(f"{queue}")

    def _scopes(self, view: View) -> Iterator[tuple[str | None, str | None, str | None]]:
        """One subscription for a namespace and task, else one for each queue."""
        selection = self._log.options.selection
        if selection.namespace or selection.task:
            yield None, selection.namespace, selection.task
        for queue in selection.queues or (view.queues if selection.pattern else ()):
            yield queue, None, None

    def _beat(self) -> None:
        if self._at is not None and time.monotonic() - self._beaten_at > HEARTBEAT_EVERY:
            self._log.db.rows(HEARTBEAT, group=self._group)
            self._beaten_at = time.monotonic()


def _columns(runs: Sequence[Run]) -> tuple[list[int], list[int], list[int]]:
    return [run.lane for run in runs], [run.first for run in runs], [run.end for run in runs]
