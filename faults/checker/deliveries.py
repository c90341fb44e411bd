"""Rules of delivery: everything, in order, and not again."""

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from faults.checker.index import Index, Violation
from faults.history import Pop


def complete(index: Index) -> Iterator[Violation]:
    """A cursor passes only what is done: delivered and answered, a dead letter, or missed by a hard limit."""
    for lane in index.state.heads:
        for group in index.groups_of(lane):
            start, cursor = index.state.cursors.get((group, lane), (0, 0))
            for offset in range(start, cursor):
                place = (lane, offset)
                if index.done_at(group, place) == inf:
                    value = next(iter(index.values.get(place, ())), None)
                    text = "never completed by it" if (group, place) in index.delivered else "never delivered to it"
                    yield Violation(f"group {group} is past {index.name(place)}, which was {text}", place, value)


def drained(index: Index) -> Iterator[Violation]:
    """Once the last fault is over, every group gets to the end."""
    for lane, head in index.state.heads.items():
        queue = index.queue_of(lane)
        for group in (*index.groups_of(lane), *(queue.auto_groups if queue and not head.only_group else ())):
            _, cursor = index.state.cursors.get((group, lane), (0, 0))
            if cursor <= head.last:
                left = head.last + 1 - max(cursor, head.first)
                yield Violation(
                    f"group {group} still has {left} messages to do in {head.queue}/{head.partition}", (lane, cursor)
                )
    if index.state.leases:
        yield Violation(f"{index.state.leases} leases or returned runs are left")


def in_order(index: Index) -> Iterator[Violation]:
    """In a lane, nothing is delivered before everything below it may have been done."""
    runs: dict[tuple[str, int], list[tuple[int, Pop]]] = defaultdict(list)
    for pop in index.history.pops:
        offsets: dict[int, list[int]] = defaultdict(list)
        for message in pop.messages:
            offsets[message.place[0]].append(message.place[1])
        for lane, each in offsets.items():
            if each != sorted(set(each)):
                yield Violation(f"{pop.who} got offsets {each} in one delivery", (lane, each[0]))
            runs[pop.group, lane].append((each[0], pop))
    for (group, lane), delivered in runs.items():
        queue = index.queue_of(lane)
        if queue and queue.concurrency == 1 and group in queue.groups:
            yield from _in_order(index, group, lane, delivered)


def _in_order(index: Index, group: str, lane: int, runs: list[tuple[int, Pop]]) -> Iterator[Violation]:
    start, _ = index.state.cursors.get((group, lane), (0, 0))
    done_by, latest, offset = (
        -inf,
        start,
        start,
    )  # when everything below `offset` may have been done, and which was last
    for first, pop in sorted(runs, key=lambda run: run[0]):
        while offset < first:
            at = index.done_at(group, (lane, offset))
            if at > done_by:
                done_by, latest = at, offset
            offset += 1
        if pop.told < done_by and not index.sought(group, 0, inf):
            text = f"{pop.who} got offset {first} of it while {latest} was not done"
            yield Violation(f"group {group}, {index.name((lane, latest))}: {text}", (lane, latest))


def not_again(index: Index) -> Iterator[Violation]:
    """After an ack is told, the message does not come again; and no two leases can both complete it."""
    for (group, place), answers in index.completed.items():
        sure = [answer for answer in answers if answer.outcome == "ok"]
        if not sure:
            continue
        first = min(sure, key=lambda answer: answer.told)
        for pop in index.delivered.get((group, place), ()):
            if pop.invoked > first.told and not index.sought(group, first.invoked, pop.told):
                yield Violation(f"{index.name(place)} came to {pop.who} after group {group} had completed it", place)
        leases = {answer.lease for answer in sure}
        if len(leases) > 1 and not index.sought(group, first.invoked, max(answer.told for answer in sure)):
            yield Violation(f"{index.name(place)} was completed under {len(leases)} leases of group {group}", place)


def at_most_once(index: Index) -> Iterator[Violation]:
    """With auto_ack a message may be lost on its way to the consumer, but comes once; and every other one comes."""
    for queue in index.setup.queues:
        for group in queue.auto_groups:
            silent = any(pop.group == group and pop.outcome != "ok" for pop in index.history.pops)
            for lane, head in index.state.heads.items():
                if head.queue == queue.name and head.only_group is None:
                    yield from _at_most_once(index, group, lane, head.last, silent=silent)


def _at_most_once(index: Index, group: str, lane: int, last: int, *, silent: bool) -> Iterator[Violation]:
    for offset in range(last + 1):
        pops = index.delivered.get((group, (lane, offset)), ())
        if len(pops) > 1 and not index.sought(group, 0, inf) and not index.setup.loses:
            yield Violation(f"{index.name((lane, offset))} came {len(pops)} times to group {group}", (lane, offset))
        if not pops and not silent:
            yield Violation(
                f"{index.name((lane, offset))} never came to group {group}, whose pops were all told", (lane, offset)
            )
