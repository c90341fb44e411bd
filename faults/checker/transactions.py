"""Rules for transactions: all of their changes are stored, or none."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation

DERIVED = "derived"  # the queue of messages that a transaction pushes together with an ack
MAKER = "transform"  # the group whose consumers run these transactions


def derived(value: str) -> str:
    return f"{value} derived"


def atomic(index: Index) -> Iterator[Violation]:
    yield from _made_once(index)
    yield from _rows(index)


def _made_once(index: Index) -> Iterator[Violation]:
    """A derived message is stored once if its transaction may have committed, and otherwise never."""
    for location, values in index.values.items():
        queue = index.queue_of(location[0])
        if queue is None or MAKER not in queue.groups or index.state.heads[location[0]].only_group not in (None, MAKER):
            continue
        for value in values:
            made = len(index.locations.get(derived(value), ()))
            done = bool(index.completed.get((MAKER, location)))
            if made != done:
                was = f"{index.name(location)} was {'' if done else 'not '}completed by {MAKER}"
                yield Violation(f"{was}, but its derived message is stored {made} times", location, value)


def _rows(index: Index) -> Iterator[Violation]:
    """A message of the outbox and its row are both stored, or neither."""
    for value in sorted(index.state.rows):
        if value not in index.locations:
            yield Violation("its row is stored, but the message is not", value=value)
    for push in index.history.pushes:
        for value in (item.value for item in (push.items if push.outbox else ())):
            sole = all(other.outbox for other in index.pushed[value])
            if value not in index.state.rows and (push.outcome == "ok" or (sole and value in index.locations)):
                yield Violation("the message is stored, but its row is not", value=value)
