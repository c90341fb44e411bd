"""A small model of what the design allows a group to receive, to compare the engine with.

A message is, for each group:

    new --pop--> leased --verdict--> done
                 leased --verdict--> waiting --pop--> leased

The model makes no choices: it accepts each delivery of the engine, or fails if the design does not allow it.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

FINAL = ("completed", "dead_letter")
FAILED = ("failed", "failed_alone")


Scope = tuple[str, str | None, str | None]  # group, queue (None: the namespace), partition (None: all of them)


def covering(group: str, queue: str | None, name: str | None) -> list[Scope]:
    """Return the scopes whose subscription may apply, most specific first."""
    return [(group, queue, name), (group, queue, None), (group, None, None)]


@dataclass(frozen=True)
class Options:
    """The options of a queue that influence the verdict."""

    concurrency: int = 1
    partial_failure: str = "dead_letter"
    retry_limit: int = 3


@dataclass(eq=False)
class Partition:
    """A partition: its pushed messages, and which of them were deleted by hand."""

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
    """A message that will be delivered again: its next attempt, the size limit of its run, and its delay."""

    attempt: int
    largest_run: int
    delayed: bool = False


@dataclass(eq=False)
class Lease:
    """A run of one partition that a consumer has leased."""

    progress: "Progress"
    offsets: Sequence[int]
    attempt: int
    largest_run: int
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    acks: dict[int, str] = field(default_factory=dict)
    succeeded: bool = False
    retry_after: bool = False
    expired: bool = False
    over: bool = False

    @property
    def live(self) -> bool:
        return not (self.over or self.expired)

    def unacknowledged(self) -> set[int]:
        return {*self.offsets} - {*self.acks}

    @property
    def is_acknowledged(self) -> bool:
        """Return true if every message was acknowledged or deleted."""
        return self.progress.partition.alive(self.unacknowledged()) == []

    def failed(self) -> set[int]:
        return {offset for offset, status in self.acks.items() if status in FAILED}

    def ack(self, offset: int, status: str) -> None:
        if self.acks.get(offset) not in FINAL:
            if status == "dead_letter":
                self.progress.dead_letter([offset], self.attempt)
            if status == "completed" and offset not in self.progress.partition.deleted:
                self.succeeded = True
            self.acks[offset] = status


@dataclass(eq=False)
class Progress:
    """The cursor and the leases of a group in a partition."""

    group: str
    partition: Partition
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
        return self.partition.alive(range(self.next, len(self.partition.payloads)))

    def todo(self) -> list[int]:
        """Return the offsets that this group still has to complete."""
        leased = (offset for lease in self.leases for offset in lease.offsets if lease.acks.get(offset) not in FINAL)
        return self.partition.alive({*self.new(), *self.waiting, *leased})

    def has_ready_messages(self) -> bool:
        free = len(self.leases) < self.partition.options.concurrency and not self.waits_for_retry()
        due = [offset for offset, waiting in self.waiting.items() if not waiting.delayed]
        return free and bool(self.new() or self.partition.alive(due))

    def waits_for_retry(self) -> bool:
        """Return true if a message waits for its retry, which in strict order delays every later message."""
        return self.partition.options.concurrency == 1 and any(waiting.delayed for waiting in self.waiting.values())

    def pass_time(self) -> None:
        self.waiting = {offset: replace(waiting, delayed=False) for offset, waiting in self.waiting.items()}

    @property
    def retry_limit(self) -> int:
        limits = (
            self.subscriptions.get(scope) for scope in covering(self.group, self.partition.queue, self.partition.name)
        )
        return next((limit for limit in limits if limit is not None), self.partition.options.retry_limit)

    def take(self, offsets: Sequence[int], attempt: int) -> Lease:
        """Accept a delivery, or fail if the design does not allow it."""
        assert len(self.leases) < self.partition.options.concurrency, "more leases than the queue allows"
        assert list(offsets) == self.partition.alive(offsets), "out of order, or deleted"
        in_order = self.partition.options.concurrency == 1
        assert not self.waits_for_retry(), "nothing is delivered before the retry"
        if offsets[0] >= self.next:
            assert list(offsets) == self.new()[: len(offsets)], "new messages are skipped"
            assert not (in_order and self.partition.alive(self.waiting)), "new messages overtake returned ones"
            assert attempt == 1
            self.next = offsets[-1] + 1
            largest_run = len(offsets)
        else:
            assert {*offsets} <= {*self.waiting}, "done or leased, and delivered again"
            assert not in_order or list(offsets) == self.partition.alive(self.waiting)[: len(offsets)], "not in order"
            runs = [self.waiting.pop(offset) for offset in offsets]
            assert {run.attempt for run in runs} == {attempt}
            assert not any(run.delayed for run in runs), "delivered before its time"
            largest_run = min(run.largest_run for run in runs)
            assert len(offsets) <= largest_run, "a run that killed its consumer is not delivered in smaller ones"
        lease = Lease(self, offsets, attempt, largest_run)
        self.leases.append(lease)
        return lease

    def apply_verdict(self, lease: Lease, reason: str, *, delayed: bool = False) -> None:
        """Apply the verdict. The reason is acknowledged, expired or released; a released run may be delayed."""
        failed = lease.failed()
        is_dead_lettered = (
            lease.succeeded and self.partition.options.partial_failure == "dead_letter" and not lease.retry_after
        )
        dead = failed if is_dead_lettered else set()
        again = (failed - dead) | lease.unacknowledged()
        alone = reason == "acknowledged" or (reason == "expired" and len(self.partition.alive(again)) == 1)
        if alone and lease.attempt > self.retry_limit:
            dead, again = dead | again, set()
        self.dead_letter(dead, lease.attempt)
        alive = {*self.partition.alive(again)}
        largest_run = max(1, len(alive) - 1) if reason == "expired" else lease.largest_run
        delayed = (delayed and alive != set()) or (
            lease.retry_after and reason != "expired" and alive & failed != set()
        )
        waiting = Waiting(lease.attempt + (reason != "released"), largest_run, delayed)
        self.waiting |= dict.fromkeys(again, waiting)
        self.drop(lease)

    def apply_failed_alone(self, lease: Lease) -> None:
        """Apply the verdict to messages that failed alone: only their attempt counts."""
        failed = lease.failed()
        if lease.attempt > self.retry_limit:
            self.dead_letter(failed, lease.attempt)
        else:
            delayed = lease.retry_after and self.partition.alive(failed) != []
            self.waiting |= dict.fromkeys(failed, Waiting(lease.attempt + 1, 1, delayed))
        self.waiting |= dict.fromkeys(lease.unacknowledged(), Waiting(lease.attempt, lease.largest_run))
        self.drop(lease)

    def drop(self, lease: Lease) -> None:
        lease.over = True
        self.leases.remove(lease)

    def dead_letter(self, offsets: Iterable[int], attempts: int) -> None:
        for offset in self.partition.alive(offsets):
            self.dead_letters.append((self.group, self.partition.queue, self.partition.name, offset, attempts))

    def check_cursor(self, cursor: int) -> None:
        """Check that everything below the cursor is done, and that it is as high as it can be."""
        todo = self.todo()
        first = todo[0] if todo else max(self.start, len(self.partition.payloads))
        assert self.lowest_cursor <= cursor <= first, "the cursor went back, or past something that is not done"
        if not self.leases and not self.waiting:
            assert self.partition.alive(range(cursor, min(first, len(self.partition.payloads)))) == [], (
                "the cursor stays behind"
            )
        self.lowest_cursor = cursor


class Model:
    """All partitions and all groups."""

    def __init__(self, options: Mapping[str, Options]) -> None:
        self.options = options
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.progresses: dict[tuple[str, Partition], Progress] = {}
        self.starts: dict[tuple[str, str, str | None], dict[Partition, int]] = {}
        self.dead_letters: list[tuple[str, str, str, int, int]] = []
        self.subscriptions: dict[Scope, int | None] = {}

    def partition(self, queue: str, name: str) -> Partition:
        return self.partitions.setdefault((queue, name), Partition(queue, name, self.options[queue]))

    def partitions_of(self, queue: str, name: str | None = None) -> list[Partition]:
        return [
            partition
            for partition in self.partitions.values()
            if partition.queue == queue and name in (None, partition.name)
        ]

    def progress(self, group: str, partition: Partition) -> Progress:
        if (group, partition) not in self.progresses:
            scopes = ((group, partition.queue, partition.name), (group, partition.queue, None))
            starts = next((self.starts[scope] for scope in scopes if scope in self.starts), {})
            self.progresses[group, partition] = Progress(
                group, partition, self.dead_letters, self.subscriptions, starts.get(partition, 0)
            )
        return self.progresses[group, partition]

    def progress_of(self, group: str, queue: str, name: str | None = None) -> list[Progress]:
        return [self.progress(group, partition) for partition in self.partitions_of(queue, name)]

    def subscribe(self, group: str, queue: str | None, name: str | None) -> None:
        """Subscribe the group to the scope of its first pop, unless a subscription covers it already."""
        if not any(scope in self.subscriptions for scope in covering(group, queue, name)):
            self.subscriptions[group, queue, name] = None

    def configure_group(self, group: str, queue: str, limit: int | None) -> None:
        """Change the options of the group for a queue and its partitions.

        A namespace group gets a subscription for the queue.
        """
        if (group, None, None) in self.subscriptions:
            self.subscriptions.setdefault((group, queue, None))
        self.subscriptions.update({scope: limit for scope in self.subscriptions if scope[:2] == (group, queue)})

    def unsubscribe(self, group: str, queue: str, *, keep: Scope | None = None) -> None:
        for scope in [scope for scope in self.subscriptions if scope[:2] == (group, queue) and scope != keep]:
            del self.subscriptions[scope]

    def seek(self, group: str, queue: str, name: str | None, offset: int | None) -> None:
        """Move to an offset, at most to the end. Partitions that are created later start at their beginning."""
        self.forget(group, queue, name)
        self.subscriptions.setdefault((group, queue, name))
        ends = {partition: len(partition.payloads) for partition in self.partitions_of(queue)}
        if name is None:
            self.unsubscribe(group, queue, keep=(group, queue, None))
            self.starts = {scope: at for scope, at in self.starts.items() if scope[:2] != (group, queue)}
        self.starts[group, queue, name] = {
            partition: end if offset is None else min(offset, end) for partition, end in ends.items()
        }

    def forget(self, group: str, queue: str, name: str | None = None) -> None:
        for progress in self.progress_of(group, queue, name):
            for lease in [*progress.leases]:
                progress.drop(lease)
            del self.progresses[group, progress.partition]
