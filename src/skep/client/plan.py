"""When a consumer leases, handles, acknowledges, extends, waits and stops: decisions only, no clock and no I/O.

A driver calls `next(now)`, performs the returned action, and reports the result:

    Pop ──popped──> ready ──Start──> busy ──acked, finished──> StoreAcks ──stored──> gone
                      └── too long, or stopping ──Release──> gone

Every lease is extended after a third of its time. An action that the database cannot do now (`failed`) is returned
again after a pause, because an action stays in the plan until it is reported as done.
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
READY_TIMEOUT = 1.0  # seconds that a fetched batch waits for a free handler before it is released for other consumers

Status = Literal["completed", "failed", "failed_alone", "dead_letter", "release"]


@dataclass(frozen=True, slots=True)
class Ack:
    """The status of a message, or (message None) of all messages of the lease that have none yet."""

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
class StoreAcks:
    """Store these acks in the database."""

    acks: tuple[Ack, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Release this batch, which no handler has started."""

    lease: UUID


@dataclass(frozen=True, slots=True)
class Extend:
    """Extend this lease."""

    lease: UUID


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for this many seconds, or until something is reported."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done:
    """Everything is finished and stored."""


Action = Pop | Start | StoreAcks | Release | Extend | Wait | Done


@dataclass(slots=True)
class _Lease:
    since: float
    extend_at: float
    ends_at: float
    lost: bool = False

    @property
    def release_at(self) -> float:
        return min(self.since + READY_TIMEOUT, self.ends_at)


def _no_acks() -> list[Ack]:
    return []


def _no_leases() -> dict[UUID, _Lease]:
    return {}


@dataclass(slots=True)
class Plan:
    """The state of one consumer. It handles `concurrency` batches at once and leases `fetch_ahead` more in advance."""

    concurrency: int
    fetch_ahead: int
    lease_time: float
    poll_interval: float
    idle_timeout: float | None = None
    _ready: dict[UUID, _Lease] = field(init=False, default_factory=_no_leases)
    _busy: dict[UUID, _Lease] = field(init=False, default_factory=_no_leases)
    _acks: list[Ack] = field(init=False, default_factory=_no_acks)
    _poll_at: float = field(init=False, default=0.0)
    _released: bool = field(init=False, default=False)  # then nothing is fetched ahead until a handler is free
    _idle_pause: float = field(init=False, default=FIRST_PAUSE)
    _more_at: float = field(init=False, default=0.0)  # when to pop while the consumer already has leases
    _more_pause: float = field(init=False, default=FIRST_PAUSE)
    _last_pop_at: float = field(init=False, default=0.0)
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
        if self._acks:
            return StoreAcks(tuple(self._acks))
        return self._release(now) or self._extend(now) or self._end(now) or self._pop(now) or self._wait(now)

    def _start(self, now: float) -> Action | None:
        """Start the oldest ready batch, unless its lease is over: another consumer may have its partition now."""
        if self._stopping or len(self._busy) >= self.concurrency:
            return None
        return next((Start(lease) for lease, state in self._ready.items() if now < state.ends_at), None)

    def _release(self, now: float) -> Action | None:
        for lease, state in self._ready.items():
            if self._stopping or now >= state.release_at:
                return Release(lease)
        return None

    def _extend(self, now: float) -> Action | None:
        for lease, state in self._live_leases():
            if now >= state.extend_at:
                return Extend(lease)
        return None

    def _end(self, now: float) -> Action | None:
        if self._busy or self._ready:
            return None
        return Done() if self._stopping or now >= self._idle_until() else None

    def _pop(self, now: float) -> Action | None:
        return Pop() if self._has_room() and now >= self._pop_at() else None

    def _wait(self, now: float) -> Action:
        due = [state.extend_at for _, state in self._live_leases()] + [
            state.release_at for state in self._ready.values()
        ]
        if self._has_room():
            due.append(self._pop_at())
        if not (self._busy or self._ready):
            due.append(self._idle_until())
        return Wait(max(0.0, min(due, default=now + self.poll_interval) - now))

    def _has_room(self) -> bool:
        ahead = 0 if self._released else self.fetch_ahead
        return not self._stopping and len(self._busy) + len(self._ready) < self.concurrency + ahead

    def _idle_until(self) -> float:
        return inf if self.idle_timeout is None or self._idle_since is None else self._idle_since + self.idle_timeout

    def _pop_at(self) -> float:
        return self._more_at if self._busy or self._ready else self._poll_at

    def _live_leases(self) -> Iterable[tuple[UUID, _Lease]]:
        for lease, state in chain(self._busy.items(), self._ready.items()):
            if not state.lost:
                yield lease, state

    def popped(self, asked_at: float, now: float, lease: UUID | None) -> None:
        """Record a pop. The lease time counts from before the call, because the lease began during it."""
        self._fault_pause = FIRST_PAUSE
        if self._busy or self._ready:
            self._adjust_more_at(now, found=lease is not None)
        if lease is not None:
            third = self.lease_time / 3
            self._ready[lease] = _Lease(since=now, extend_at=asked_at + third, ends_at=asked_at + self.lease_time)
            self._idle_since = None
            self._poll_now()
            return
        if self._busy or self._ready:
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        self._poll_at = now + self._idle_pause
        self._idle_pause = min(self._idle_pause * 2, self.poll_interval)

    def _adjust_more_at(self, now: float, *, found: bool) -> None:
        """Pop less and less often while no more is found: with a single partition every second pop would be useless."""
        self._last_pop_at = now
        if found:
            self._more_at, self._more_pause = 0.0, FIRST_PAUSE
        else:
            self._more_at = now + self._more_pause
            self._more_pause = min(self._more_pause * 2, self.poll_interval)

    def started(self, lease: UUID) -> None:
        self._busy[lease] = self._ready.pop(lease)

    def acked(self, acks: Sequence[Ack]) -> None:
        self._acks.extend(acks)

    def finished(self, lease: UUID) -> None:
        """Record that a handler has finished a batch. Its partition may have more, once the acks are stored."""
        self._busy.pop(lease, None)
        self._released = False
        self._idle_since = None
        self._poll_now()
        self._more_at = 0.0

    def stored(self, acks: Sequence[Ack]) -> None:
        del self._acks[: len(acks)]
        self._fault_pause = FIRST_PAUSE

    def released(self, lease: UUID) -> None:
        """Record a release. Leased again at once, the partition would only wait for the same slow handler."""
        del self._ready[lease]
        self._released = True
        self._fault_pause = FIRST_PAUSE

    def extended(self, asked_at: float, lease: UUID) -> None:
        for known, state in self._live_leases():
            if known == lease:
                state.extend_at = asked_at + self.lease_time / 3
                state.ends_at = asked_at + self.lease_time
        self._fault_pause = FIRST_PAUSE

    def lost(self, lease: UUID) -> bool:
        """Record that a lease is lost. Return True if a handler is busy with it; it stays counted until it finishes."""
        self._ready.pop(lease, None)
        if state := self._busy.get(lease):
            state.lost = True
        return state is not None

    def failed(self, now: float) -> None:
        self._blocked_until = now + self._fault_pause
        self._fault_pause = min(self._fault_pause * 2, LONGEST_FAULT_PAUSE)

    def woken(self) -> None:
        self._poll_now()
        self._more_at = min(self._more_at, self._last_pop_at + FIRST_PAUSE)

    def stop(self) -> None:
        self._stopping = True

    def _poll_now(self) -> None:
        self._poll_at = 0.0
        self._idle_pause = FIRST_PAUSE


@dataclass(slots=True)
class BatchAcks:
    """The acks of one batch while its messages are handled one by one, passed to the driver from time to time."""

    lease: UUID
    delay: float  # seconds after which completed messages are reported at the latest
    _acks: list[Ack] = field(init=False, default_factory=_no_acks)
    _reported_at: float | None = field(init=False, default=None)

    def completed(self, message: UUID) -> None:
        self._acks.append(Ack(self.lease, message, "completed"))

    def failed(self, message: UUID, error: str) -> None:
        self._acks.append(Ack(self.lease, message, "failed", error))

    def due(self, now: float) -> list[Ack]:
        """Return the acks to store before the batch is finished."""
        if self._reported_at is None:
            self._reported_at = now
        if now < self._reported_at + self.delay:
            return []
        self._reported_at = now
        due, self._acks = self._acks, []
        return due

    def remaining(self) -> list[Ack]:
        """Return the acks left at the end of the batch: each failure, and one ack for all completed messages."""
        failed = [ack for ack in self._acks if ack.status != "completed"]
        completed = len(failed) < len(self._acks)
        return [*failed, Ack(self.lease, None, "completed")] if completed else failed


@dataclass(slots=True)
class Backoff:
    """The pauses of a waiting pop: each is twice the one before, up to `longest` seconds."""

    longest: float
    _pause: float = field(init=False, default=FIRST_PAUSE)

    def pause(self, left: float) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, self.longest)
        return max(0.0, min(pause, left))


Report = Callable[[], None]
