"""Rules over what an observer saw while the round went on."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation


def forward(index: Index) -> Iterator[Violation]:
    """A cursor never goes back, unless its group was moved; and never more leases are out than a queue allows."""
    seen: dict[tuple[str, int], tuple[float, int]] = {}
    for sample in index.history.samples:
        for (group, partition), (cursor, leases) in sample.cursors.items():
            at, before = seen.get((group, partition), (sample.at, cursor))
            if cursor < before and not index.sought(group, at, sample.at):
                yield Violation(
                    f"group {group} went back from {index.name((partition, before))} to {cursor}", (partition, cursor)
                )
            seen[group, partition] = (sample.at, cursor)
            queue = index.queue_of(partition)
            if queue is not None and leases > queue.concurrency:
                yield Violation(
                    f"group {group} had {leases} leases on {index.name((partition, cursor))}", (partition, cursor)
                )


def pending_is_kept(index: Index) -> Iterator[Violation]:
    """Retention deletes no message that a group has not done yet, unless a queue has a hard limit; then by that."""
    for group, partition, first, end in index.state.missed:
        limit = index.limit_of(partition)
        if limit is None or end > index.ends.get(partition, 0) - limit:
            text = f"group {group} missed {end - first} messages from {index.name((partition, first))}"
            yield Violation(f"{text}, and the queue keeps {'all' if limit is None else limit}", (partition, first))
    for partition, steps in _floors(index).items():
        if index.limit_of(partition) is None:
            for group in index.groups_of(partition):
                yield from _deleted_early(index, group, partition, steps)


def _floors(index: Index) -> dict[int, list[tuple[float, int]]]:
    """Return when each partition was first seen to begin at a later offset than before."""
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for sample in sorted(index.history.samples, key=lambda sample: sample.at):
        for partition, (first, _) in sample.heads.items():
            if first > (found[partition][-1][1] if found[partition] else 0) and partition in index.state.heads:
                found[partition].append((sample.at, first))
    return found


def _deleted_early(index: Index, group: str, partition: int, steps: list[tuple[float, int]]) -> Iterator[Violation]:
    floor = 0
    for at, first in steps:
        for offset in range(floor, first):
            place = (partition, offset)
            if index.done_at(group, place) > at:
                yield Violation(f"{index.name(place)} was deleted, and group {group} had not done it", place)
        floor = first


def leased_is_kept(index: Index) -> Iterator[Violation]:
    """Retention deletes no message of a lease: an ack that counts is never for a message that was gone before."""
    floors = _floors(index)
    for ack in index.history.acks:
        if ack.outcome != "ok":
            continue
        for partition, offset in ack.places:
            first = max((first for at, first in floors.get(partition, ()) if at < ack.invoked), default=0)
            if offset < first:
                place = (partition, offset)
                yield Violation(f"{index.name(place)} was deleted while {ack.who} had leased it", place)
                break
