"""Rules over samples of the state during a round."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation


def forward(index: Index) -> Iterator[Violation]:
    """A cursor never moves back without a seek, and a partition never has more leases than the queue allows."""
    seen: dict[tuple[str, int], tuple[float, int]] = {}
    for sample in index.history.samples:
        for (group, partition), (cursor, leases) in sample.cursors.items():
            at, before = seen.get((group, partition), (sample.at, cursor))
            if cursor < before and not index.was_moved(group, at, sample.at):
                yield Violation(
                    f"the cursor of group {group} moved back from {index.name((partition, before))} to {cursor}",
                    (partition, cursor),
                )
            seen[group, partition] = (sample.at, cursor)
            queue = index.queue_of(partition)
            if queue is not None and leases > queue.concurrency:
                yield Violation(
                    f"group {group} had {leases} leases on {index.name((partition, cursor))}", (partition, cursor)
                )


def pending_is_kept(index: Index) -> Iterator[Violation]:
    """Retention deletes no pending message, except by a hard limit of the queue."""
    for group, partition, first, end in index.state.missed:
        limit = index.limit_of(partition)
        if limit is None or end > index.ends.get(partition, 0) - limit:
            text = f"group {group} missed {end - first} messages from {index.name((partition, first))}"
            yield Violation(f"{text}, but the queue keeps {'all' if limit is None else limit}", (partition, first))
    for partition, steps in _floors(index).items():
        if index.limit_of(partition) is None:
            for group in index.groups_of(partition):
                yield from _deleted_early(index, group, partition, steps)


def _floors(index: Index) -> dict[int, list[tuple[float, int]]]:
    """Return the times at which the first offset of each partition was seen to grow."""
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
            location = (partition, offset)
            if index.done_at(group, location) > at:
                yield Violation(f"{index.name(location)} was deleted before group {group} had completed it", location)
        floor = first


def leased_is_kept(index: Index) -> Iterator[Violation]:
    """Retention deletes no leased message: no accepted ack is for a message that was deleted before."""
    floors = _floors(index)
    for ack in index.history.acks:
        if ack.outcome != "ok":
            continue
        for partition, offset in ack.locations:
            first = max((first for at, first in floors.get(partition, ()) if at < ack.invoked), default=0)
            if offset < first:
                location = (partition, offset)
                yield Violation(f"{index.name(location)} was deleted while {ack.who} had leased it", location)
                break
