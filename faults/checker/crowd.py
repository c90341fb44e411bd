"""Rules for a crowd of lanes beside a long one: too many messages to tell one by one, so ranges of them are told."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from faults.checker.index import Index, Violation
from faults.history import Run

Span = tuple[int, int, Run]
NAME = "crowded lane"


def complete(index: Index) -> Iterator[Violation]:
    """Everything below a cursor was done by somebody, and everything is below it in the end."""
    done = _by_lane(index.history.done_runs, ("ok", "unknown"))
    for lane, (last, cursor) in index.state.crowd.items():
        if cursor <= last:
            yield Violation(f"{NAME} {lane} is at {cursor} of {last + 1}", (lane, cursor))
        reached = _reach((first, end) for first, end, _ in done.get(lane, ()))
        if reached < cursor:
            yield Violation(f"{NAME} {lane}: {reached} is below the cursor, and was never done", (lane, reached))


def once(index: Index) -> Iterator[Violation]:
    """No message is completed under two leases, and none is delivered after that was told."""
    delivered = _by_lane(index.history.runs, ("ok",))
    for lane, spans in _by_lane(index.history.done_runs, ("ok",)).items():
        reached = 0
        for first, end, run in sorted(spans, key=lambda span: span[:2]):
            if first < reached:
                yield Violation(f"{NAME} {lane}: {first} was completed under two leases", (lane, first))
            reached = max(reached, end)
            for again, until, other in delivered.get(lane, ()):
                if again < end and first < until and other.invoked > run.told:
                    yield Violation(
                        f"{NAME} {lane}: {other.who} got {again} after {run.who} had done it", (lane, again)
                    )


def in_order(index: Index) -> Iterator[Violation]:
    """Nothing is delivered before what is below it may have been done."""
    done = _by_lane(index.history.done_runs, ("ok", "unknown"))
    for lane, spans in _by_lane(index.history.runs, ("ok",)).items():
        for first, _, run in spans:
            before = ((begin, end) for begin, end, other in done.get(lane, ()) if other.invoked < run.told)
            if _reach(before) < first:
                yield Violation(
                    f"{NAME} {lane}: {run.who} got {first} while something below was not done", (lane, first)
                )


def _reach(spans: Iterable[tuple[int, int]]) -> int:
    """Return how far these ranges go from the beginning without a gap."""
    reached = 0
    for first, end in sorted(spans):
        if first > reached:
            break
        reached = max(reached, end)
    return reached


def _by_lane(runs: list[Run], outcomes: tuple[str, ...]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = defaultdict(list)
    for run in runs:
        if run.outcome in outcomes:
            for lane, first, end in run.spans:
                found[lane].append((first, end, run))
    return found
