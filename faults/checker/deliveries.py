"""Rules for delivery: every message, in order, and not again after its ack."""

from collections import defaultdict
from collections.abc import Iterator
from math import ceil, inf

from faults.checker.index import Index, Violation
from faults.history import Pop

Run = tuple[int, int, float]  # first offset, end, and the time at which a later message was delivered


def complete(index: Index) -> Iterator[Violation]:
    """Every known message is completed by every group, or is a dead letter, or was deleted by a hard limit.

    All groups subscribe from the beginning before the first push. Cursors are not used: they may be wrong.
    """
    for partition in index.state.heads:
        for group in index.groups_of(partition):
            for offset in range(index.ends.get(partition, 0)):
                location = (partition, offset)
                if index.done_at(group, location) == inf:
                    value = next(iter(index.values.get(location, ())), None)
                    text = "completed by" if (group, location) in index.delivered else "delivered to"
                    yield Violation(f"{index.name(location)} was never {text} group {group}", location, value)


def drained(index: Index) -> Iterator[Violation]:
    """After the last fault every group reaches the end."""
    for partition, head in index.state.heads.items():
        queue = index.queue_of(partition)
        for group in (*index.groups_of(partition), *(queue.auto_groups if queue and not head.only_group else ())):
            cursor = index.state.cursors.get((group, partition), 0)
            if cursor <= head.last:
                left = head.last + 1 - max(cursor, head.first)
                yield Violation(
                    f"group {group} still has a lag of {left} in {head.queue}/{head.partition}",
                    (partition, cursor),
                )
    if index.state.leases:
        yield Violation(f"{index.state.leases} leases or returned runs exist")


def in_order(index: Index) -> Iterator[Violation]:
    """In a partition, no message is delivered before all earlier messages may have been completed."""
    runs: dict[tuple[str, int], list[tuple[int, Pop]]] = defaultdict(list)
    for pop in index.history.pops:
        offsets: dict[int, list[int]] = defaultdict(list)
        for message in pop.messages:
            offsets[message.location[0]].append(message.location[1])
        for partition, each in offsets.items():
            if each != sorted(set(each)):
                yield Violation(f"{pop.who} got offsets {each} in one delivery", (partition, each[0]))
            runs[pop.group, partition].append((each[0], pop))
    for (group, partition), delivered in runs.items():
        queue = index.queue_of(partition)
        if queue and queue.concurrency == 1 and group in queue.groups:
            yield from _in_order(index, group, partition, delivered)


def _in_order(index: Index, group: str, partition: int, runs: list[tuple[int, Pop]]) -> Iterator[Violation]:
    done_by, latest, offset = (
        -inf,
        0,
        0,
    )  # the time at which all below `offset` may have been completed, and the last of them
    for first, pop in sorted(runs, key=lambda run: run[0]):
        while offset < first:
            at = index.done_at(group, (partition, offset))
            if at > done_by:
                done_by, latest = at, offset
            offset += 1
        if pop.returned < done_by and not index.was_moved(group, 0, inf):
            text = f"{pop.who} got offset {first} before {latest} was completed"
            yield Violation(f"group {group}, {index.name((partition, latest))}: {text}", (partition, latest))


def not_again(index: Index) -> Iterator[Violation]:
    """After an ack has returned, the message is not delivered again; and no two leases complete it."""
    for (group, location), acks in index.completed.items():
        sure = [ack for ack in acks if ack.outcome == "ok"]
        if not sure:
            continue
        first = min(sure, key=lambda ack: ack.returned)
        for pop in index.delivered.get((group, location), ()):
            if pop.invoked > first.returned and not index.was_moved(group, first.invoked, pop.returned):
                yield Violation(
                    f"{index.name(location)} was delivered to {pop.who} after group {group} had completed it", location
                )
        leases = {ack.lease for ack in sure}
        if len(leases) > 1 and not index.was_moved(group, first.invoked, max(ack.returned for ack in sure)):
            yield Violation(
                f"{index.name(location)} was completed under {len(leases)} leases of group {group}", location
            )


def at_most_once(index: Index) -> Iterator[Violation]:
    """With auto_ack a message is delivered at most once, and is lost only with the response of a pop.

    A pop whose response was lost explains one run of messages of one partition, at most its batch.
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
    if index.was_moved(group, 0, inf) or index.setup.loses:
        return
    for offset in range(index.ends.get(partition, 0)):
        location = (partition, offset)
        times = len(index.delivered.get((group, location), ()))
        if times > 1:
            yield Violation(f"{index.name(location)} was delivered {times} times to group {group}", location)


def _never_delivered(index: Index, group: str, partition: int) -> Iterator[Run]:
    """Yield the runs of a partition that no pop of a group has returned."""
    first = None
    end = index.ends.get(partition, 0)
    if index.setup.loses:  # stored messages may be lost
        end = min(end, index.state.heads[partition].last + 1)
    for offset in range(end):
        pops = index.delivered.get((group, (partition, offset)), ())
        if not pops and first is None:
            first = offset
        elif pops and first is not None:
            yield first, offset, min(pop.returned for pop in pops)
            first = None
    if first is not None:
        yield first, end, inf


def _unexplained(index: Index, group: str, runs: list[tuple[int, Run]]) -> Iterator[Violation]:
    """Assign the pops with unknown outcome to the runs, in the order in which the group passed them."""
    unknown = [pop for pop in index.history.pops if pop.group == group and pop.outcome == "unknown"]
    used = 0
    for partition, (first, end, passed) in sorted(runs, key=lambda run: run[1][2]):
        able = [pop for pop in unknown if pop.invoked < passed]
        most = max((pop.batch for pop in able), default=0)
        needed = ceil((end - first) / most) if most else inf
        if used + needed <= len(able):
            used += int(needed)
            continue
        text = f"{len(able) - used} of its pops have an unknown outcome, of at most {most} messages"
        yield Violation(
            f"{index.name((partition, first))} to {end - 1} were never delivered to group {group}; {text}",
            (partition, first),
        )
