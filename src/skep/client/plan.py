"""When a consumer leases, hands out, answers, extends, waits and stops: decisions only, no clock and no I/O.

A driver asks `next(now)`, does what it is told, and reports what came of it:

    Pop ──popped──> ready ──Start──> busy ──answered, finished──> Answer ──stored──> gone
                      └── too long, or stopping ──Release──> gone

Everything held is extended at a third of its lease. What the database refuses to do now (`failed`) is asked for
again after a pause, since nothing is crossed off before it is reported done.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Literal
from uuid import UUID

from skep.errors import InvalidArgument

FIRST_PAUSE = 0.02
LONGEST_FAULT_PAUSE = 5.0
PATIENCE = 1.0  # a batch fetched ahead may wait so long for a free handler before others get their chance

Status = Literal["completed", "failed", "failed_alone", "dead_letter", "release"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a message, or of everything in the lease that has no answer yet."""

    lease: UUID
    message: UUID | None
    status: Status
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Pop:
    """Lease another batch."""


@dataclass(frozen=True, slots=True)
class Start:
    """Hand this batch to a handler."""

    lease: UUID


@dataclass(frozen=True, slots=True)
class Store:
    """Store these answers."""

    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Give this batch back: nobody has begun it."""

    lease: UUID


@dataclass(frozen=True, slots=True)
class Extend:
    """Hold on to this lease."""

    lease: UUID


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do for so many seconds, unless something is reported."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """Everything is finished and stored."""


Action = Pop | Start | Store | Release | Extend | Wait | Done


@dataclass(slots=True)
class _Held:
    since: float
    extend_at: float
    ends_at: float
    lost: bool = False

    @property
    def give_back_at(self) -> float:
        return min(self.since + PATIENCE, self.ends_at)


def _no_answers() -> list[Answer]:
    return []


def _no_leases() -> dict[UUID, _Held]:
    return {}


@dataclass(slots=True)
class Plan:
    """The state of one consumer. `concurrency` batches are handled at once, `fetch_ahead` more are leased and wait."""

    concurrency: int
    fetch_ahead: int
    lease_time: float
    poll_interval: float
    idle_timeout: float | None = None
    _ready: dict[UUID, _Held] = field(init=False, default_factory=_no_leases)
    _busy: dict[UUID, _Held] = field(init=False, default_factory=_no_leases)
    _answers: list[Answer] = field(init=False, default_factory=_no_answers)
    _poll_at: float = field(init=False, default=0.0)
    _gave_back: bool = field(init=False, default=False)  # so nothing is fetched ahead until a handler is free
    _idle_pause: float = field(init=False, default=FIRST_PAUSE)
    _more_at: float = field(init=False, default=0.0)  # when to look for more while something is held already
    _more_pause: float = field(init=False, default=FIRST_PAUSE)
    _looked_for_more: float = field(init=False, default=0.0)
    _idle_since: float | None = field(init=False, default=None)
    _fault_pause: float = field(init=False, default=FIRST_PAUSE)
    _blocked_until: float = field(init=False, default=0.0)
    _stopping: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.fetch_ahead < 0 or self.lease_time <= 0 or self.poll_interval <= 0:
            raise InvalidArgument(
                "a consumer needs concurrency >= 1, fetch_ahead >= 0, and lease_time and poll_interval above 0"
            )

    def next(self, now: float) -> Action:
        if start := self._start(now):
            return start
        if now < self._blocked_until:
            return Wait(self._blocked_until - now)
        if self._answers:
            return Store(tuple(self._answers))
        return self._give_back(now) or self._hold_on(now) or self._end(now) or self._pop(now) or self._wait(now)

    def _start(self, now: float) -> Action | None:
        """The oldest that waits, unless its lease is over: somebody else may be further in its lane already."""
        if self._stopping or len(self._busy) >= self.concurrency:
            return None
        return next((Start(lease) for lease, held in self._ready.items() if now < held.ends_at), None)

    def _give_back(self, now: float) -> Action | None:
        for lease, held in self._ready.items():
            if self._stopping or now >= held.give_back_at:
                return Release(lease)
        return None

    def _hold_on(self, now: float) -> Action | None:
        for lease, held in self._held():
            if now >= held.extend_at:
                return Extend(lease)
        return None

    def _end(self, now: float) -> Action | None:
        if self._busy or self._ready:
            return None
        return Done() if self._stopping or now >= self._idle_until() else None

    def _pop(self, now: float) -> Action | None:
        return Pop() if self._has_room() and now >= self._pop_at() else None

    def _wait(self, now: float) -> Action:
        due = [held.extend_at for _, held in self._held()] + [held.give_back_at for held in self._ready.values()]
        if self._has_room():
            due.append(self._pop_at())
        if not (self._busy or self._ready):
            due.append(self._idle_until())
        return Wait(max(0.0, min(due, default=now + self.poll_interval) - now))

    def _has_room(self) -> bool:
        ahead = 0 if self._gave_back else self.fetch_ahead
        return not self._stopping and len(self._busy) + len(self._ready) < self.concurrency + ahead

    def _idle_until(self) -> float:
        return inf if self.idle_timeout is None or self._idle_since is None else self._idle_since + self.idle_timeout

    def _pop_at(self) -> float:
        return self._more_at if self._busy or self._ready else self._poll_at

    def _held(self) -> Iterable[tuple[UUID, _Held]]:
        for lease, held in chain(self._busy.items(), self._ready.items()):
            if not held.lost:
                yield lease, held

    def popped(self, asked_at: float, now: float, lease: UUID | None) -> None:
        """The deadline counts from before the call: the database's clock began at some time during it."""
        self._fault_pause = FIRST_PAUSE
        if self._busy or self._ready:
            self._popped_more(now, found=lease is not None)
        if lease is not None:
            third = self.lease_time / 3
            self._ready[lease] = _Held(since=now, extend_at=asked_at + third, ends_at=asked_at + self.lease_time)
            self._idle_since = None
            self._poll_now()
            return
        if self._busy or self._ready:
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        self._poll_at = now + self._idle_pause
        self._idle_pause = min(self._idle_pause * 2, self.poll_interval)

    def _popped_more(self, now: float, *, found: bool) -> None:
        """While one lane is all there is, each batch costs a second pop in vain: look for others ever less often."""
        self._looked_for_more = now
        if found:
            self._more_at, self._more_pause = 0.0, FIRST_PAUSE
        else:
            self._more_at = now + self._more_pause
            self._more_pause = min(self._more_pause * 2, self.poll_interval)

    def started(self, lease: UUID) -> None:
        self._busy[lease] = self._ready.pop(lease)

    def answered(self, answers: Sequence[Answer]) -> None:
        self._answers.extend(answers)

    def finished(self, lease: UUID) -> None:
        """The handler is through with a batch. Its lane is free once the answers are stored, and may have more."""
        self._busy.pop(lease, None)
        self._gave_back = False
        self._idle_since = None
        self._poll_now()
        self._more_at = 0.0

    def stored(self, answers: Sequence[Answer]) -> None:
        del self._answers[: len(answers)]
        self._fault_pause = FIRST_PAUSE

    def released(self, lease: UUID) -> None:
        """Others get their chance: fetched again in the same moment, its lane would wait for a slow handler of ours."""
        del self._ready[lease]
        self._gave_back = True
        self._fault_pause = FIRST_PAUSE

    def extended(self, asked_at: float, lease: UUID) -> None:
        for known, held in self._held():
            if known == lease:
                held.extend_at = asked_at + self.lease_time / 3
                held.ends_at = asked_at + self.lease_time
        self._fault_pause = FIRST_PAUSE

    def lost(self, lease: UUID) -> bool:
        """Somebody else has it now. If a handler is busy with it (True), that one keeps its place until it ends."""
        self._ready.pop(lease, None)
        if held := self._busy.get(lease):
            held.lost = True
        return held is not None

    def failed(self, now: float) -> None:
        self._blocked_until = now + self._fault_pause
        self._fault_pause = min(self._fault_pause * 2, LONGEST_FAULT_PAUSE)

    def woken(self) -> None:
        self._poll_now()
        self._more_at = min(self._more_at, self._looked_for_more + FIRST_PAUSE)

    def stop(self) -> None:
        self._stopping = True

    def _poll_now(self) -> None:
        self._poll_at = 0.0
        self._idle_pause = FIRST_PAUSE


@dataclass(slots=True)
class Tally:
    """The answers for one batch while its messages are handled one by one; told to the driver now and then."""

    lease: UUID
    delay: float  # what is completed is stored at the latest so many seconds later, if the consumer lives
    _tell: list[Answer] = field(init=False, default_factory=_no_answers)
    _told_at: float | None = field(init=False, default=None)

    def completed(self, message: UUID) -> None:
        self._tell.append(Answer(self.lease, message, "completed"))

    def failed(self, message: UUID, error: str) -> None:
        self._tell.append(Answer(self.lease, message, "failed", error))

    def due(self, now: float) -> list[Answer]:
        """Return what is to be stored before the batch is finished."""
        if self._told_at is None:
            self._told_at = now
        if now < self._told_at + self.delay:
            return []
        self._told_at = now
        told, self._tell = self._tell, []
        return told

    def rest(self) -> list[Answer]:
        """Return what is left at the end of the batch: who failed, and one word for all others."""
        failed = [answer for answer in self._tell if answer.status != "completed"]
        completed = len(failed) < len(self._tell)
        return [*failed, Answer(self.lease, None, "completed")] if completed else failed


@dataclass(slots=True)
class Pacing:
    """How long a waiting pop sleeps between two looks."""

    longest: float
    _pause: float = field(init=False, default=FIRST_PAUSE)

    def pause(self, left: float) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, self.longest)
        return max(0.0, min(pause, left))


Report = Callable[[], None]
