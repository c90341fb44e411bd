"""Rules of transactions: what was done together is there together, or not at all."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation

DERIVED = "derived"  # what is made of the messages of another queue, in the transaction that acknowledges them
MAKER = "transform"  # the group that does it


def derived(value: str) -> str:
    return f"{value} made new"


def both_or_none(index: Index) -> Iterator[Violation]:
    yield from _made_once(index)
    yield from _rows(index)


def _made_once(index: Index) -> Iterator[Violation]:
    """What is made of a message is stored once if its transaction may have committed, and never else."""
    for place, values in index.values.items():
        queue = index.queue_of(place[0])
        if queue is None or MAKER not in queue.groups or index.state.heads[place[0]].only_group not in (None, MAKER):
            continue
        for value in values:
            made = len(index.places.get(derived(value), ()))
            done = bool(index.completed.get((MAKER, place)))
            if made != done:
                was = f"{index.name(place)} was {'' if done else 'not '}completed by {MAKER}"
                yield Violation(f"{was}, and what is made of it is stored {made} times", place, value)


def _rows(index: Index) -> Iterator[Violation]:
    """A message of the outbox and the rows of its transaction: both or none."""
    for value in sorted(index.state.rows):
        if value not in index.places:
            yield Violation("its row is there, and the message is not", value=value)
    for push in index.history.pushes:
        for value in (item.value for item in (push.items if push.outbox else ())):
            sole = all(other.outbox for other in index.pushed[value])
            if value not in index.state.rows and (push.outcome == "ok" or (sole and value in index.places)):
                yield Violation("the message is there, and its row is not", value=value)
