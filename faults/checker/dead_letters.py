"""Rules of dead letters."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation
from faults.history import Ack, Place
from faults.state import DeadLetter

POISON = "!"  # begins what is wrong with a message: !fail, !crash, !hang


def accounted_for(index: Index) -> Iterator[Violation]:
    """A message dies once for a group, for a reason, and not if it was completed; poison does not get through."""
    refused = _refused(index)
    for dead_letter in index.state.dead_letters:
        count = index.dead_letters[dead_letter.group, dead_letter.place]
        name = f"{index.name(dead_letter.place)} of group {dead_letter.group}"
        if count > 1:
            yield Violation(f"{name} is {count} dead letters", dead_letter.place)
        if any(ack.outcome == "ok" for ack in index.completed.get((dead_letter.group, dead_letter.place), ())):
            yield Violation(f"{name} is a dead letter, and was completed", dead_letter.place)
        if not _explained(index, dead_letter, refused):
            yield Violation(
                f"{name} is a dead letter after {dead_letter.attempts} attempts, and nobody refused it",
                dead_letter.place,
            )
    yield from _poison(index)
    copies = sum(head.last + 1 for head in index.state.heads.values() if head.only_group)
    if copies != index.state.redriven:
        yield Violation(f"{index.state.redriven} dead letters were driven again, and there are {copies} copies")


def _refused(index: Index) -> dict[tuple[str, Place], list[Ack]]:
    found: dict[tuple[str, Place], list[Ack]] = defaultdict(list)
    for ack in index.history.acks:
        if ack.kind in ("failed", "dlq") and ack.outcome in ("ok", "unknown"):
            for place in ack.places:
                found[ack.group, place].append(ack)
    return found


def _explained(index: Index, dead_letter: DeadLetter, refused: dict[tuple[str, Place], list[Ack]]) -> bool:
    queue = index.queue_of(dead_letter.place[0])
    tried = dead_letter.attempts is not None and queue is not None and dead_letter.attempts > queue.retry_limit
    return tried or bool(refused.get((dead_letter.group, dead_letter.place)))


def _poison(index: Index) -> Iterator[Violation]:
    for (group, place), acks in index.completed.items():
        if any(POISON in value for value in index.values.get(place, ())) and any(a.outcome == "ok" for a in acks):
            yield Violation(f"{index.name(place)} is poison, and group {group} completed it", place)
