"""Rules for a crowd of partitions beside a long one: too many messages to tell each, so ranges of them are told."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from faults.checker.index import Index, Violation
from faults.history import Run

Span = tuple[int, int, Run]
NAME = "crowded partition"


def complete(index: Index) -> Iterator[Violation]:
    """Every message that was pushed to the crowd was done by somebody."""
    done = _by_partition(index.history.done_runs, ("ok", "unknown"))
    for partition, (last, cursor) in index.state.crowd.items():
        reached = _reach((first, end) for first, end, _ in done.get(partition, ()))
        if reached <= last:
            text = f"{reached} of {last + 1} was never done, its cursor is {cursor}"
            yield Violation(f"{NAME} {partition}: {text}", (partition, reached))
    stored = sum(last + 1 for last, _ in index.state.crowd.values())
    if stored < index.history.filled:
        yield Violation(f"{index.history.filled} messages were pushed to the crowd, and {stored} are there")


def once(index: Index) -> Iterator[Violation]:
    """No message is completed under two leases, and none is delivered after that was told."""
    delivered = _by_partition(index.history.runs, ("ok",))
    for partition, spans in _by_partition(index.history.done_runs, ("ok",)).items():
        reached = 0
        for first, end, run in sorted(spans, key=lambda span: span[:2]):
            if first < reached:
                yield Violation(f"{NAME} {partition}: {first} was completed under two leases", (partition, first))
            reached = max(reached, end)
            for again, until, other in delivered.get(partition, ()):
                if again < end and first < until and other.invoked > run.told:
                    yield Violation(
                        f"{NAME} {partition}: {other.who} got {again} after {run.who} had done it", (partition, again)
                    )


def in_order(index: Index) -> Iterator[Violation]:
    """Nothing is delivered before what is below it may have been done."""
    done = _by_partition(index.history.done_runs, ("ok", "unknown"))
    for partition, spans in _by_partition(index.history.runs, ("ok",)).items():
        for first, _, run in spans:
            before = ((begin, end) for begin, end, other in done.get(partition, ()) if other.invoked < run.told)
            if _reach(before) < first:
                yield Violation(
                    f"{NAME} {partition}: {run.who} got {first} while something below was not done", (partition, first)
                )


def _reach(spans: Iterable[tuple[int, int]]) -> int:
    """Return how far these ranges go from the beginning without a gap."""
    reached = 0
    for first, end in sorted(spans):
        if first > reached:
            break
        reached = max(reached, end)
    return reached


def _by_partition(runs: list[Run], outcomes: tuple[str, ...]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = defaultdict(list)
    for run in runs:
        if run.outcome in outcomes:
            for partition, first, end in run.spans:
                found[partition].append((first, end, run))
    return found
