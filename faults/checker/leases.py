"""Rules of leases: how many at once, and that one which is over counts no more."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation
from faults.history import Answer, Pop

SLACK = 1.0  # seconds that a machine under load may lose between the database and the history of a client


def one_at_a_time(index: Index) -> Iterator[Violation]:
    """A lease is certainly good from the moment its consumer had it to when an answer that counted was sent."""
    pops = {(pop.group, pop.lease): pop for pop in index.history.pops if pop.lease}
    good: dict[tuple[str, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for answer in index.history.answers:
        pop = pops.get((answer.group, answer.lease))
        if pop is None or answer.outcome != "ok" or pop.auto:
            continue
        for lane in {lane for lane, _ in answer.places}:
            since, until = good[answer.group, lane].get(answer.lease, (pop.told, pop.told))
            good[answer.group, lane][answer.lease] = (since, max(until, answer.invoked))
    for (group, lane), leases in good.items():
        queue = index.queue_of(lane)
        if queue is not None:
            yield from _overlaps(group, lane, leases, queue.concurrency)


def _overlaps(group: str, lane: int, leases: dict[str, tuple[float, float]], allowed: int) -> Iterator[Violation]:
    steps = sorted(
        step
        for lease, (since, until) in leases.items()
        if until > since
        for step in ((since, 1, lease), (until, -1, lease))
    )
    held: set[str] = set()
    for at, step, lease in steps:
        if step < 0:
            held.discard(lease)
            continue
        held.add(lease)
        if len(held) > allowed:
            text = f"{len(held)} leases of group {group} on lane {lane} were good at {at:.3f}"
            yield Violation(f"{text}: {', '.join(sorted(held))}", (lane, 0))


def stale_refused(index: Index) -> Iterator[Violation]:
    """An answer does not count once another consumer has the message, nor long after its lease was over."""
    for answer in index.history.answers:
        if answer.outcome != "ok" or not answer.places:
            continue
        own = next(
            (p for p in index.delivered.get((answer.group, answer.places[0]), ()) if p.lease == answer.lease), None
        )
        if own is None or own.auto:
            continue
        yield from _taken_over(index, answer, own)
        yield from _too_late(index, answer, own)


def _taken_over(index: Index, answer: Answer, own: Pop) -> Iterator[Violation]:
    if index.sought(answer.group, 0, answer.told):
        return
    for place in answer.places:
        for pop in index.delivered.get((answer.group, place), ()):
            if pop.lease != own.lease and own.told < pop.invoked and pop.told < answer.invoked:
                text = f"{answer.who} answered {index.name(place)} after {pop.who} had got it, and it counted"
                yield Violation(text, place)


def _too_late(index: Index, answer: Answer, pop: Pop) -> Iterator[Violation]:
    if pop.lease_time is None or index.setup.clocks_jump or answer.lease in index.extended:
        return
    if answer.invoked > pop.told + pop.lease_time + SLACK:
        late = answer.invoked - pop.told - pop.lease_time
        yield Violation(
            f"{answer.who} answered {late:.1f} s after its lease was over, and it counted", answer.places[0]
        )
