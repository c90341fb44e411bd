"""What the design says a group may be given, as a small program to compare the engine with.

A message is, for each group:

    new --pop--> held --verdict--> done
                 held --verdict--> waiting --pop--> held

The model does not choose: it is told what the engine delivered, and refuses what the design does not allow.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

FINAL = ("completed", "dead_letter")
FAILED = ("failed", "failed_alone")


Scope = tuple[str, str | None, str | None]  # group, queue (None: the namespace), partition (None: all of them)


def covering(group: str, queue: str | None, name: str | None) -> list[Scope]:
    """Return the scopes whose subscription may decide, the most specific one first."""
    return [(group, queue, name), (group, queue, None), (group, None, None)]


@dataclass(frozen=True)
class Options:
    """The options of a queue that the verdict depends on."""

    concurrency: int = 1
    partial_failure: str = "dead_letter"
    retry_limit: int = 3


@dataclass(eq=False)
class Lane:
    """A partition: what was pushed, and what of it was deleted by hand."""

    queue: str
    name: str
    options: Options
    id: int = 0
    payloads: list[Any] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)

    def alive(self, offsets: Iterable[int]) -> list[int]:
        return [offset for offset in sorted(offsets) if offset not in self.deleted]


@dataclass(frozen=True)
class Waiting:
    """A message that comes again: its next attempt, the largest run it may come in, and whether only after a delay."""

    attempt: int
    largest_run: int
    delayed: bool = False


@dataclass(eq=False)
class Lease:
    """A run of one lane in the hands of a consumer."""

    place: "Place"
    offsets: Sequence[int]
    attempt: int
    largest_run: int
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    answers: dict[int, str] = field(default_factory=dict)
    succeeded: bool = False
    retry_after: bool = False
    expired: bool = False
    over: bool = False

    @property
    def live(self) -> bool:
        return not (self.over or self.expired)

    def unanswered(self) -> set[int]:
        return {*self.offsets} - {*self.answers}

    @property
    def is_answered(self) -> bool:
        """Every message has its ack, or was deleted."""
        return self.place.lane.alive(self.unanswered()) == []

    def failed(self) -> set[int]:
        return {offset for offset, status in self.answers.items() if status in FAILED}

    def answer(self, offset: int, status: str) -> None:
        if self.answers.get(offset) not in FINAL:
            if status == "dead_letter":
                self.place.bury([offset], self.attempt)
            if status == "completed" and offset not in self.place.lane.deleted:
                self.succeeded = True
            self.answers[offset] = status


@dataclass(eq=False)
class Place:
    """Where a group is in a lane."""

    group: str
    lane: Lane
    dead_letters: list[tuple[str, str, str, int, int]]
    subscriptions: Mapping[Scope, int | None]
    start: int
    next: int = field(init=False)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    lowest_cursor: int = field(init=False)

    def __post_init__(self) -> None:
        self.next = self.lowest_cursor = self.start

    def new(self) -> list[int]:
        return self.lane.alive(range(self.next, len(self.lane.payloads)))

    def todo(self) -> list[int]:
        """Return everything that this group has still to complete."""
        held = (offset for lease in self.leases for offset in lease.offsets if lease.answers.get(offset) not in FINAL)
        return self.lane.alive({*self.new(), *self.waiting, *held})

    def has_something_ready(self) -> bool:
        free = len(self.leases) < self.lane.options.concurrency and not self.is_held_up()
        due = [offset for offset, waiting in self.waiting.items() if not waiting.delayed]
        return free and bool(self.new() or self.lane.alive(due))

    def is_held_up(self) -> bool:
        """In strict order nothing overtakes a message that waits for its retry."""
        return self.lane.options.concurrency == 1 and any(waiting.delayed for waiting in self.waiting.values())

    def pass_time(self) -> None:
        self.waiting = {offset: replace(waiting, delayed=False) for offset, waiting in self.waiting.items()}

    @property
    def retry_limit(self) -> int:
        limits = (self.subscriptions.get(scope) for scope in covering(self.group, self.lane.queue, self.lane.name))
        return next((limit for limit in limits if limit is not None), self.lane.options.retry_limit)

    def take(self, offsets: Sequence[int], attempt: int) -> Lease:
        """Accept a delivery, if the design allows it."""
        assert len(self.leases) < self.lane.options.concurrency, "more leases than the queue allows"
        assert list(offsets) == self.lane.alive(offsets), "out of order, or deleted"
        in_order = self.lane.options.concurrency == 1
        assert not self.is_held_up(), "nothing is delivered before the retry"
        if offsets[0] >= self.next:
            assert list(offsets) == self.new()[: len(offsets)], "new messages are skipped"
            assert not (in_order and self.lane.alive(self.waiting)), "new messages overtake those that come again"
            assert attempt == 1
            self.next = offsets[-1] + 1
            largest_run = len(offsets)
        else:
            assert {*offsets} <= {*self.waiting}, "done or held, and delivered again"
            assert not in_order or list(offsets) == self.lane.alive(self.waiting)[: len(offsets)], "not in order"
            runs = [self.waiting.pop(offset) for offset in offsets]
            assert {run.attempt for run in runs} == {attempt}
            assert not any(run.delayed for run in runs), "delivered before its time"
            largest_run = min(run.largest_run for run in runs)
            assert len(offsets) <= largest_run, "a run that killed its consumer is not delivered in smaller ones"
        lease = Lease(self, offsets, attempt, largest_run)
        self.leases.append(lease)
        return lease

    def judge(self, lease: Lease, reason: str, *, delayed: bool = False) -> None:
        """The verdict: reason is answered, expired or released, with or without a delay."""
        failed = lease.failed()
        gives_up = lease.succeeded and self.lane.options.partial_failure == "dead_letter" and not lease.retry_after
        dead = failed if gives_up else set()
        again = (failed - dead) | lease.unanswered()
        alone = reason == "answered" or (reason == "expired" and len(self.lane.alive(again)) == 1)
        if alone and lease.attempt > self.retry_limit:
            dead, again = dead | again, set()
        self.bury(dead, lease.attempt)
        alive = {*self.lane.alive(again)}
        largest_run = max(1, len(alive) - 1) if reason == "expired" else lease.largest_run
        delayed = (delayed and alive != set()) or (
            lease.retry_after and reason != "expired" and alive & failed != set()
        )
        waiting = Waiting(lease.attempt + (reason != "released"), largest_run, delayed)
        self.waiting |= dict.fromkeys(again, waiting)
        self.drop(lease)

    def judge_alone(self, lease: Lease) -> None:
        """The verdict on messages that failed alone: they are charged, and messages without ack are not."""
        failed = lease.failed()
        if lease.attempt > self.retry_limit:
            self.bury(failed, lease.attempt)
        else:
            delayed = lease.retry_after and self.lane.alive(failed) != []
            self.waiting |= dict.fromkeys(failed, Waiting(lease.attempt + 1, 1, delayed))
        self.waiting |= dict.fromkeys(lease.unanswered(), Waiting(lease.attempt, lease.largest_run))
        self.drop(lease)

    def drop(self, lease: Lease) -> None:
        lease.over = True
        self.leases.remove(lease)

    def bury(self, offsets: Iterable[int], attempts: int) -> None:
        for offset in self.lane.alive(offsets):
            self.dead_letters.append((self.group, self.lane.queue, self.lane.name, offset, attempts))

    def check_cursor(self, cursor: int) -> None:
        """Below the cursor everything is done; above it, up to what is next, only what an open run spans."""
        todo = self.todo()
        first = todo[0] if todo else max(self.start, len(self.lane.payloads))
        assert self.lowest_cursor <= cursor <= first, "the cursor went back, or past something that is not done"
        if not self.leases and not self.waiting:
            assert self.lane.alive(range(cursor, min(first, len(self.lane.payloads)))) == [], "the cursor stays behind"
        self.lowest_cursor = cursor


class Model:
    """All lanes and all groups."""

    def __init__(self, options: Mapping[str, Options]) -> None:
        self.options = options
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.places: dict[tuple[str, Lane], Place] = {}
        self.starts: dict[tuple[str, str, str | None], dict[Lane, int]] = {}
        self.dead_letters: list[tuple[str, str, str, int, int]] = []
        self.subscriptions: dict[Scope, int | None] = {}

    def lane(self, queue: str, name: str) -> Lane:
        return self.lanes.setdefault((queue, name), Lane(queue, name, self.options[queue]))

    def lanes_of(self, queue: str, name: str | None = None) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.queue == queue and name in (None, lane.name)]

    def place(self, group: str, lane: Lane) -> Place:
        if (group, lane) not in self.places:
            scopes = ((group, lane.queue, lane.name), (group, lane.queue, None))
            starts = next((self.starts[scope] for scope in scopes if scope in self.starts), {})
            self.places[group, lane] = Place(group, lane, self.dead_letters, self.subscriptions, starts.get(lane, 0))
        return self.places[group, lane]

    def places_of(self, group: str, queue: str, name: str | None = None) -> list[Place]:
        return [self.place(group, lane) for lane in self.lanes_of(queue, name)]

    def subscribe(self, group: str, queue: str | None, name: str | None) -> None:
        """The first pop of a scope subscribes the group to it, if no subscription covers it."""
        if not any(scope in self.subscriptions for scope in covering(group, queue, name)):
            self.subscriptions[group, queue, name] = None

    def configure_group(self, group: str, queue: str, limit: int | None) -> None:
        """Change what the group has for a queue and its partitions; under a namespace it gets one for the queue."""
        if (group, None, None) in self.subscriptions:
            self.subscriptions.setdefault((group, queue, None))
        self.subscriptions.update({scope: limit for scope in self.subscriptions if scope[:2] == (group, queue)})

    def unsubscribe(self, group: str, queue: str, *, keep: Scope | None = None) -> None:
        for scope in [scope for scope in self.subscriptions if scope[:2] == (group, queue) and scope != keep]:
            del self.subscriptions[scope]

    def seek(self, group: str, queue: str, name: str | None, offset: int | None) -> None:
        """Go to an offset, at most to the end: in partitions that are not there yet, to their beginning."""
        self.forget(group, queue, name)
        self.subscriptions.setdefault((group, queue, name))
        ends = {lane: len(lane.payloads) for lane in self.lanes_of(queue)}
        if name is None:
            self.unsubscribe(group, queue, keep=(group, queue, None))
            self.starts = {scope: at for scope, at in self.starts.items() if scope[:2] != (group, queue)}
        self.starts[group, queue, name] = {
            lane: end if offset is None else min(offset, end) for lane, end in ends.items()
        }

    def forget(self, group: str, queue: str, name: str | None = None) -> None:
        for place in self.places_of(group, queue, name):
            for lease in [*place.leases]:
                place.drop(lease)
            del self.places[group, place.lane]
