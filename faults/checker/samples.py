"""Rules over what an observer saw while the round went on."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation


def forward(index: Index) -> Iterator[Violation]:
    """A cursor never goes back, unless its group was moved; and never more leases are out than a queue allows."""
    seen: dict[tuple[str, int], tuple[float, int]] = {}
    for sample in index.history.samples:
        for (group, lane), (cursor, leases) in sample.cursors.items():
            at, before = seen.get((group, lane), (sample.at, cursor))
            if cursor < before and not index.sought(group, at, sample.at):
                yield Violation(
                    f"group {group} went back from {index.name((lane, before))} to {cursor}", (lane, cursor)
                )
            seen[group, lane] = (sample.at, cursor)
            queue = index.queue_of(lane)
            if queue is not None and leases > queue.concurrency:
                yield Violation(f"group {group} had {leases} leases on {index.name((lane, cursor))}", (lane, cursor))


def owed_is_kept(index: Index) -> Iterator[Violation]:
    """Retention deletes nothing that a group is still to do, unless a queue has a hard limit."""
    for group, lane, first, end in index.state.missed:
        if not index.has_limit(lane):
            yield Violation(
                f"group {group} missed {end - first} messages from {index.name((lane, first))}", (lane, first)
            )
    for sample in index.history.samples:
        for (group, lane), (cursor, _) in sample.cursors.items():
            first, _ = sample.heads.get(lane, (0, 0))
            if first > cursor:
                yield Violation(
                    f"{index.name((lane, cursor))} was deleted, and group {group} had it to do", (lane, cursor)
                )
