"""An account of every message: the calls of clients with their results, and what must therefore be true at the end.

Expectations come from the results that clients got, never from what the database says about its groups. Times are those
of this machine, on which the database runs as well. A call whose connection ended may or may not be done.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import psycopg

Key = tuple[int, int]  # partition id and offset


@dataclass(frozen=True)
class Push:
    key: Key
    queue: str
    began: float
    ended: float
    only_group: str | None = None


@dataclass(frozen=True)
class Delivery:
    group: str
    queue: str
    key: Key
    lease: str
    began: float
    ended: float
    expires: float  # the deadline that the consumer was given


@dataclass(frozen=True)
class Ack:
    """A message that the group has completed; with a lease, if its delivery is known."""

    group: str
    key: Key
    began: float
    ended: float
    lease: str
    is_sure: bool = True


@dataclass(frozen=True)
class Move:
    """A seek, a pause, a deletion: messages may be delivered again, or not at all, and leases end.

    No group: all groups.
    """

    kind: str
    group: str | None
    queue: str | None
    began: float
    ended: float

    def touches(self, group: str, queue: str, since: float, until: float) -> bool:
        return (
            self.group in (None, group) and self.queue in (None, queue) and self.ended >= since and self.began <= until
        )


REPEATING = ("seek", "delete group")  # after these, completed messages may be delivered again
ENDS = (*REPEATING, "pause", "clear", "delete queue", "delete partition", "cancel")  # after these, a lease has ended


@dataclass
class Account:
    """Everything that happened. Threads append to the lists; nothing is ever removed."""

    pushes: list[Push] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)  # leases that their consumer released itself, and when
    moves: list[Move] = field(default_factory=list)
    cleared: list[Key] = field(default_factory=list)  # partition id and the first offset that was kept
    deleted_partitions: list[int] = field(default_factory=list)
    deleted_messages: list[Key] = field(default_factory=list)
    redriven: list[tuple[str, Key]] = field(default_factory=list)  # dead letters that no longer exist
    joined: dict[tuple[str, str], float] = field(default_factory=dict)  # groups that joined late, by queue
    problems: list[str] = field(default_factory=list)

    def check(self, mq: psycopg.Connection, groups: Iterable[tuple[str, str]]) -> list[str]:
        """Return the problems, in words. `groups` has the group and queue of everyone who drained it."""
        found = [*self.problems, *self._repeated(), *self._completed_twice(), *self._leased_twice()]
        missed, dead = self._missed(mq), self._dead_letters(mq)
        for group, queue in groups:
            found += self._lost(group, queue, missed, dead)
            found += self._miscounted(group, queue, missed, dead)
        return found

    def _moves(self, kinds: tuple[str, ...], group: str, queue: str, since: float, until: float) -> bool:
        return any(move.kind in kinds and move.touches(group, queue, since, until) for move in self.moves)

    def _repeated(self) -> Iterable[str]:
        """Return messages that were delivered by a pop that began after their ack was durable."""
        acks = defaultdict(list)
        for ack in self.acks:
            if ack.is_sure:
                acks[ack.group, ack.key].append(ack)
        for delivery in self.deliveries:
            for ack in acks[delivery.group, delivery.key]:
                if ack.ended < delivery.began and not self._moves(
                    REPEATING, delivery.group, delivery.queue, ack.began, delivery.ended
                ):
                    yield f"delivered after a durable ack: {delivery} {ack}"

    def _completed_twice(self) -> Iterable[str]:
        queues = {push.key: push.queue for push in self.pushes}
        acks = defaultdict(list)
        for ack in self.acks:
            if ack.is_sure:
                acks[ack.group, ack.key].append(ack)
        for (group, key), twins in acks.items():
            twins.sort(key=lambda ack: ack.began)
            for one, two in pairwise(twins):
                if one.lease != two.lease and not self._moves(
                    REPEATING, group, queues.get(key, ""), one.began, two.ended
                ):
                    yield f"completed twice: {one} {two}"

    def _leased_twice(self) -> Iterable[str]:
        """Return messages that a second consumer got before the lease of the first had ended."""
        last: dict[tuple[str, Key], Delivery] = {}
        acked = {(ack.group, ack.key, ack.lease): ack.began for ack in self.acks}
        for delivery in sorted(self.deliveries, key=lambda delivery: delivery.ended):
            one = last.get((delivery.group, delivery.key))
            last[delivery.group, delivery.key] = delivery
            if one is None or one.lease == delivery.lease or delivery.ended >= one.expires:
                continue
            over = min(
                self.ended.get(one.lease, delivery.ended), acked.get((one.group, one.key, one.lease), delivery.ended)
            )
            if over >= delivery.ended and not self._moves(ENDS, one.group, one.queue, one.began, delivery.ended):
                yield f"leased twice at once: {one} {delivery}"

    def _missed(self, mq: psycopg.Connection) -> dict[tuple[str, int], tuple[set[int], int]]:
        """Return, by group and partition, the offsets that retention recorded as missed, and how many it counted."""
        query = "SELECT group_name, partition_id, first_offset, end_offset, messages FROM skep.missed_messages"
        found: dict[tuple[str, int], tuple[set[int], int]] = defaultdict(lambda: (set(), 0))
        for group, partition, first, end, messages in mq.execute(query).fetchall():
            offsets, number = found[group, partition]
            found[group, partition] = (offsets | {*range(first, end)}, number + messages)
        return found

    def _dead_letters(self, mq: psycopg.Connection) -> set[tuple[str, Key]]:
        rows = mq.execute('SELECT group_name, partition_id, "offset" FROM skep.dead_letters').fetchall()
        return {(group, (partition, offset)) for group, partition, offset in rows} | {*self.redriven}

    def _expected(self, group: str, queue: str) -> list[Push]:
        """Return the messages that the group should have received, unless retention deleted them before."""
        floors: dict[int, int] = defaultdict(int)
        for partition, first in self.cleared:
            floors[partition] = max(floors[partition], first)
        skipped_until = max(
            (move.ended for move in self.moves if move.kind == "skip" and move.touches(group, queue, 0, 1e18)),
            default=0.0,
        )
        since = max(skipped_until, self.joined.get((group, queue), 0.0))
        gone, erased = {*self.deleted_partitions}, {*self.deleted_messages}
        return [
            push
            for push in self.pushes
            if push.queue == queue
            and push.only_group in (None, group)
            and push.key[0] not in gone
            and push.key not in erased
            and push.key[1] >= floors[push.key[0]]
            and push.began > since
        ]

    def _lost(self, group: str, queue: str, missed, dead) -> Iterable[str]:
        done = {ack.key for ack in self.acks if ack.group == group}
        for push in self._expected(group, queue):
            is_missed = push.key[1] in missed[group, push.key[0]][0]
            if push.key not in done and (group, push.key) not in dead and not is_missed:
                yield f"lost for group {group}: {push}"

    def _miscounted(self, group: str, queue: str, missed, dead) -> Iterable[str]:
        """Return partitions for which more or fewer messages are recorded as missed than the group did not complete."""
        if self._moves((*REPEATING, "skip", "clear", "delete queue", "delete partition"), group, queue, 0, 1e18):
            return
        partitions = {push.key[0] for push in self.pushes if push.queue == queue}
        perhaps = {ack.key for ack in self.acks if ack.group == group and not ack.is_sure}
        done = {ack.key for ack in self.acks if ack.group == group and ack.is_sure}
        done |= {key for owner, key in dead if owner == group}
        for partition in partitions:
            offsets, number = missed[group, partition]
            left = {offset for offset in offsets if (partition, offset) not in done | {*self.deleted_messages}}
            unsure = {offset for offset in left if (partition, offset) in perhaps}
            if not len(left) - len(unsure) <= number <= len(left):
                yield f"group {group} missed {len(left)} messages of partition {partition}, recorded: {number}"
