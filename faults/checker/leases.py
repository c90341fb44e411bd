"""Rules for leases: their number at the same time, and that acks of expired ones are rejected."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation
from faults.history import Ack, Pop

SLACK = 1.0  # seconds between the database and the history of a client on a busy machine


def one_at_a_time(index: Index) -> Iterator[Violation]:
    """A queue's concurrency limits valid leases. A lease is valid from its pop to the last ack that was accepted."""
    pops = {(pop.group, pop.lease): pop for pop in index.history.pops if pop.lease}
    valid: dict[tuple[str, int], dict[str, tuple[float, float]]] = defaultdict(dict)
    for ack in index.history.acks:
        pop = pops.get((ack.group, ack.lease))
        if pop is None or ack.outcome != "ok" or pop.auto:
            continue
        for partition in {partition for partition, _ in ack.locations}:
            since, until = valid[ack.group, partition].get(ack.lease, (pop.returned, pop.returned))
            valid[ack.group, partition][ack.lease] = (since, max(until, ack.invoked))
    for (group, partition), leases in valid.items():
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
    active: set[str] = set()
    for at, step, lease in steps:
        if step < 0:
            active.discard(lease)
            continue
        active.add(lease)
        if len(active) > allowed:
            text = f"{len(active)} leases of group {group} on partition {partition} were valid at {at:.3f}"
            yield Violation(f"{text}: {', '.join(sorted(active))}", (partition, 0))


def stale_refused(index: Index) -> Iterator[Violation]:
    """An ack is rejected after another consumer has got the message, and after its lease has expired."""
    for ack in index.history.acks:
        if ack.outcome != "ok" or not ack.locations:
            continue
        own = next((p for p in index.delivered.get((ack.group, ack.locations[0]), ()) if p.lease == ack.lease), None)
        if own is None or own.auto:
            continue
        yield from _after_redelivery(index, ack, own)
        yield from _after_expiry(index, ack, own)


def _after_redelivery(index: Index, ack: Ack, own: Pop) -> Iterator[Violation]:
    if index.was_moved(ack.group, 0, ack.returned):
        return
    for location in ack.locations:
        for pop in index.delivered.get((ack.group, location), ()):
            if pop.lease != own.lease and own.returned < pop.invoked and pop.returned < ack.invoked:
                text = f"{ack.who} acked {index.name(location)} after {pop.who} had got it, and the ack was accepted"
                yield Violation(text, location)


def _after_expiry(index: Index, ack: Ack, pop: Pop) -> Iterator[Violation]:
    if pop.lease_time is None or index.setup.clocks_jump or ack.lease in index.extended:
        return
    if ack.invoked > pop.returned + pop.lease_time + SLACK:
        late = ack.invoked - pop.returned - pop.lease_time
        yield Violation(
            f"{ack.who} acked {late:.1f} s after its lease had expired, and the ack was accepted", ack.locations[0]
        )
