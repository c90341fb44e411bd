"""Rules for dead letters."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation
from faults.history import Ack, Location
from faults.state import DeadLetter

POISON = "!"  # prefix of the kinds of poison messages: !fail, !crash, !hang


def accounted_for(index: Index) -> Iterator[Violation]:
    """A message becomes a dead letter once for a group, with a cause, and not after it was completed."""
    rejected = _rejected(index)
    for dead_letter in index.state.dead_letters:
        count = index.dead_letters[dead_letter.group, dead_letter.location]
        name = f"{index.name(dead_letter.location)} of group {dead_letter.group}"
        if count > 1:
            yield Violation(f"{name} is {count} dead letters", dead_letter.location)
        if any(ack.outcome == "ok" for ack in index.completed.get((dead_letter.group, dead_letter.location), ())):
            yield Violation(f"{name} is a dead letter, but was completed", dead_letter.location)
        if not _explained(index, dead_letter, rejected):
            yield Violation(
                f"{name} is a dead letter after {dead_letter.attempts} attempts, but no consumer rejected it",
                dead_letter.location,
            )
    yield from _poison(index)
    copies = sum(head.last + 1 for head in index.state.heads.values() if head.only_group)
    if copies != index.state.redriven:
        yield Violation(f"{index.state.redriven} dead letters were redriven, but there are {copies} copies")


def _rejected(index: Index) -> dict[tuple[str, Location], list[Ack]]:
    found: dict[tuple[str, Location], list[Ack]] = defaultdict(list)
    for ack in index.history.acks:
        if ack.kind in ("failed", "dlq") and ack.outcome in ("ok", "unknown"):
            for location in ack.locations:
                found[ack.group, location].append(ack)
    return found


def _explained(index: Index, dead_letter: DeadLetter, rejected: dict[tuple[str, Location], list[Ack]]) -> bool:
    queue = index.queue_of(dead_letter.location[0])
    tried = dead_letter.attempts is not None and queue is not None and dead_letter.attempts > queue.retry_limit
    return tried or bool(rejected.get((dead_letter.group, dead_letter.location)))


def _poison(index: Index) -> Iterator[Violation]:
    for (group, location), acks in index.completed.items():
        if any(POISON in value for value in index.values.get(location, ())) and any(a.outcome == "ok" for a in acks):
            yield Violation(f"{index.name(location)} is poison, but group {group} completed it", location)
