"""Rules for many partitions and a long one: there are too many messages to record each, so ranges are recorded."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from faults.checker.index import Index, Violation
from faults.history import Run

Range = tuple[int, int, Run]
NAME = "crowded partition"


def complete(index: Index) -> Iterator[Violation]:
    """Every message that was pushed to the crowd was completed."""
    done = _by_partition(index.history.done_runs, ("ok", "unknown"))
    for partition, (last, cursor) in index.state.crowd.items():
        reached = _reach((first, end) for first, end, _ in done.get(partition, ()))
        if reached <= last:
            text = f"{reached} of {last + 1} was never completed, its cursor is {cursor}"
            yield Violation(f"{NAME} {partition}: {text}", (partition, reached))
    stored = sum(last + 1 for last, _ in index.state.crowd.values())
    if stored < index.history.filled:
        yield Violation(f"{index.history.filled} messages were pushed to the crowd, but {stored} are stored")


def once(index: Index) -> Iterator[Violation]:
    """No message is completed under two leases, or delivered after it was completed."""
    delivered = _by_partition(index.history.runs, ("ok",))
    for partition, ranges in _by_partition(index.history.done_runs, ("ok",)).items():
        reached = 0
        for first, end, run in sorted(ranges, key=lambda each: each[:2]):
            if first < reached:
                yield Violation(f"{NAME} {partition}: {first} was completed under two leases", (partition, first))
            reached = max(reached, end)
            for again, until, other in delivered.get(partition, ()):
                if again < end and first < until and other.invoked > run.returned:
                    yield Violation(
                        f"{NAME} {partition}: {other.who} got {again} after {run.who} had completed it",
                        (partition, again),
                    )


def in_order(index: Index) -> Iterator[Violation]:
    """No message is delivered before all earlier messages may have been completed."""
    done = _by_partition(index.history.done_runs, ("ok", "unknown"))
    for partition, ranges in _by_partition(index.history.runs, ("ok",)).items():
        for first, _, run in ranges:
            before = ((begin, end) for begin, end, other in done.get(partition, ()) if other.invoked < run.returned)
            if _reach(before) < first:
                yield Violation(
                    f"{NAME} {partition}: {run.who} got {first} before an earlier message was completed",
                    (partition, first),
                )


def _reach(ranges: Iterable[tuple[int, int]]) -> int:
    """Return the end of the first gap-free range from offset 0."""
    reached = 0
    for first, end in sorted(ranges):
        if first > reached:
            break
        reached = max(reached, end)
    return reached


def _by_partition(runs: list[Run], outcomes: tuple[str, ...]) -> dict[int, list[Range]]:
    found: dict[int, list[Range]] = defaultdict(list)
    for run in runs:
        if run.outcome in outcomes:
            for partition, first, end in run.ranges:
                found[partition].append((first, end, run))
    return found
