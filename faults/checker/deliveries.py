"""Rules of delivery: everything, in order, and not again."""

from collections import defaultdict
from collections.abc import Iterator
from math import ceil, inf

from faults.checker.index import Index, Violation
from faults.history import Pop

Run = tuple[int, int, float]  # first offset, end, and when a message behind it was delivered


def complete(index: Index) -> Iterator[Violation]:
    """Every message that anybody was told of is done by every group: acked, a dead letter, or past a hard limit.

    All groups subscribe from the beginning before the first push. No cursor is asked: it may be wrong.
    """
    for partition in index.state.heads:
        for group in index.groups_of(partition):
            for offset in range(index.ends.get(partition, 0)):
                place = (partition, offset)
                if index.done_at(group, place) == inf:
                    value = next(iter(index.values.get(place, ())), None)
                    text = "completed by" if (group, place) in index.delivered else "delivered to"
                    yield Violation(f"{index.name(place)} was never {text} group {group}", place, value)


def drained(index: Index) -> Iterator[Violation]:
    """Once the last fault is over, every group gets to the end."""
    for partition, head in index.state.heads.items():
        queue = index.queue_of(partition)
        for group in (*index.groups_of(partition), *(queue.auto_groups if queue and not head.only_group else ())):
            cursor = index.state.cursors.get((group, partition), 0)
            if cursor <= head.last:
                left = head.last + 1 - max(cursor, head.first)
                yield Violation(
                    f"group {group} still has {left} messages to do in {head.queue}/{head.partition}",
                    (partition, cursor),
                )
    if index.state.leases:
        yield Violation(f"{index.state.leases} leases or returned runs are left")


def in_order(index: Index) -> Iterator[Violation]:
    """In a partition, nothing is delivered before everything below it may have been done."""
    runs: dict[tuple[str, int], list[tuple[int, Pop]]] = defaultdict(list)
    for pop in index.history.pops:
        offsets: dict[int, list[int]] = defaultdict(list)
        for message in pop.messages:
            offsets[message.place[0]].append(message.place[1])
        for partition, each in offsets.items():
            if each != sorted(set(each)):
                yield Violation(f"{pop.who} got offsets {each} in one delivery", (partition, each[0]))
            runs[pop.group, partition].append((each[0], pop))
    for (group, partition), delivered in runs.items():
        queue = index.queue_of(partition)
        if queue and queue.concurrency == 1 and group in queue.groups:
            yield from _in_order(index, group, partition, delivered)


def _in_order(index: Index, group: str, partition: int, runs: list[tuple[int, Pop]]) -> Iterator[Violation]:
    done_by, latest, offset = -inf, 0, 0  # when everything below `offset` may have been done, and which was last
    for first, pop in sorted(runs, key=lambda run: run[0]):
        while offset < first:
            at = index.done_at(group, (partition, offset))
            if at > done_by:
                done_by, latest = at, offset
            offset += 1
        if pop.told < done_by and not index.sought(group, 0, inf):
            text = f"{pop.who} got offset {first} of it while {latest} was not done"
            yield Violation(f"group {group}, {index.name((partition, latest))}: {text}", (partition, latest))


def not_again(index: Index) -> Iterator[Violation]:
    """After an ack is told, the message does not come again; and no two leases can both complete it."""
    for (group, place), acks in index.completed.items():
        sure = [ack for ack in acks if ack.outcome == "ok"]
        if not sure:
            continue
        first = min(sure, key=lambda ack: ack.told)
        for pop in index.delivered.get((group, place), ()):
            if pop.invoked > first.told and not index.sought(group, first.invoked, pop.told):
                yield Violation(f"{index.name(place)} came to {pop.who} after group {group} had completed it", place)
        leases = {ack.lease for ack in sure}
        if len(leases) > 1 and not index.sought(group, first.invoked, max(ack.told for ack in sure)):
            yield Violation(f"{index.name(place)} was completed under {len(leases)} leases of group {group}", place)


def at_most_once(index: Index) -> Iterator[Violation]:
    """With auto_ack a message may be lost on its way to the consumer, but comes once; and every other one comes.

    A pop whose answer was lost explains one run of messages of one partition, no longer than its batch.
    """
    for queue in index.setup.queues:
        for group in queue.auto_groups:
            runs: list[tuple[int, Run]] = []
            for partition, head in index.state.heads.items():
                if head.queue == queue.name and head.only_group is None:
                    yield from _at_most_once(index, group, partition)
                    runs += ((partition, run) for run in _never_delivered(index, group, partition))
            yield from _unexplained(index, group, runs)


def _at_most_once(index: Index, group: str, partition: int) -> Iterator[Violation]:
    if index.sought(group, 0, inf) or index.setup.loses:
        return
    for offset in range(index.ends.get(partition, 0)):
        place = (partition, offset)
        times = len(index.delivered.get((group, place), ()))
        if times > 1:
            yield Violation(f"{index.name(place)} came {times} times to group {group}", place)


def _never_delivered(index: Index, group: str, partition: int) -> Iterator[Run]:
    """Return the runs of a partition that no pop of a group has told of."""
    first = None
    end = index.ends.get(partition, 0)
    if index.setup.loses:  # what was told may be gone
        end = min(end, index.state.heads[partition].last + 1)
    for offset in range(end):
        pops = index.delivered.get((group, (partition, offset)), ())
        if not pops and first is None:
            first = offset
        elif pops and first is not None:
            yield first, offset, min(pop.told for pop in pops)
            first = None
    if first is not None:
        yield first, end, inf


def _unexplained(index: Index, group: str, runs: list[tuple[int, Run]]) -> Iterator[Violation]:
    """Share out the pops that nobody was told of among the runs, the one that was passed first before the others."""
    silent = [pop for pop in index.history.pops if pop.group == group and pop.outcome == "unknown"]
    used = 0
    for partition, (first, end, passed) in sorted(runs, key=lambda run: run[1][2]):
        able = [pop for pop in silent if pop.invoked < passed]
        most = max((pop.batch for pop in able), default=0)
        needed = ceil((end - first) / most) if most else inf
        if used + needed <= len(able):
            used += int(needed)
            continue
        text = f"{len(able) - used} pops of it are left whose answer was lost, of {most} messages at most"
        yield Violation(
            f"{index.name((partition, first))} to {end - 1} never came to group {group}; {text}", (partition, first)
        )
