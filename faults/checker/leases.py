"""Rules of leases: how many at once, and that one which is over counts no more."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation
from faults.history import Ack, Pop

SLACK = 1.0  # seconds that a machine under load may lose between the database and the history of a client


def one_at_a_time(index: Index) -> Iterator[Violation]:
    """A lease is certainly good from the moment its consumer had it to when an ack that counted was sent."""
    pops = {(pop.group, pop.lease): pop for pop in index.history.pops if pop.lease}
    good: dict[tuple[str, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for ack in index.history.acks:
        pop = pops.get((ack.group, ack.lease))
        if pop is None or ack.outcome != "ok" or pop.auto:
            continue
        for partition in {partition for partition, _ in ack.places}:
            since, until = good[ack.group, partition].get(ack.lease, (pop.told, pop.told))
            good[ack.group, partition][ack.lease] = (since, max(until, ack.invoked))
    for (group, partition), leases in good.items():
        queue = index.queue_of(partition)
        if queue is not None:
            yield from _overlaps(group, partition, leases, queue.concurrency)


def _overlaps(group: str, partition: int, leases: dict[str, tuple[float, float]], allowed: int) -> Iterator[Violation]:
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
            text = f"{len(held)} leases of group {group} on partition {partition} were good at {at:.3f}"
            yield Violation(f"{text}: {', '.join(sorted(held))}", (partition, 0))


def stale_refused(index: Index) -> Iterator[Violation]:
    """An ack does not count once another consumer has the message, nor long after its lease was over."""
    for ack in index.history.acks:
        if ack.outcome != "ok" or not ack.places:
            continue
        own = next((p for p in index.delivered.get((ack.group, ack.places[0]), ()) if p.lease == ack.lease), None)
        if own is None or own.auto:
            continue
        yield from _taken_over(index, ack, own)
        yield from _too_late(index, ack, own)


def _taken_over(index: Index, ack: Ack, own: Pop) -> Iterator[Violation]:
    if index.sought(ack.group, 0, ack.told):
        return
    for place in ack.places:
        for pop in index.delivered.get((ack.group, place), ()):
            if pop.lease != own.lease and own.told < pop.invoked and pop.told < ack.invoked:
                text = f"{ack.who} acked {index.name(place)} after {pop.who} had got it, and it counted"
                yield Violation(text, place)


def _too_late(index: Index, ack: Ack, pop: Pop) -> Iterator[Violation]:
    if pop.lease_time is None or index.setup.clocks_jump or ack.lease in index.extended:
        return
    if ack.invoked > pop.told + pop.lease_time + SLACK:
        late = ack.invoked - pop.told - pop.lease_time
        yield Violation(f"{ack.who} acked {late:.1f} s after its lease was over, and it counted", ack.places[0])
