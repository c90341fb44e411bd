"""Rules of dead letters."""

from collections import defaultdict
from collections.abc import Iterator

from faults.checker.index import Index, Violation
from faults.history import Answer, Place
from faults.state import Letter

POISON = "!"  # begins what is wrong with a message: !fail, !crash, !hang


def accounted_for(index: Index) -> Iterator[Violation]:
    """A message dies once for a group, for a reason, and not if it was completed; poison does not get through."""
    refused = _refused(index)
    for letter in index.state.letters:
        count = index.letters[letter.group, letter.place]
        name = f"{index.name(letter.place)} of group {letter.group}"
        if count > 1:
            yield Violation(f"{name} is {count} dead letters", letter.place)
        if any(answer.outcome == "ok" for answer in index.completed.get((letter.group, letter.place), ())):
            yield Violation(f"{name} is a dead letter, and was completed", letter.place)
        if not _explained(index, letter, refused):
            yield Violation(
                f"{name} is a dead letter after {letter.attempts} attempts, and nobody refused it", letter.place
            )
    yield from _poison(index)
    copies = sum(head.last + 1 for head in index.state.heads.values() if head.only_group)
    if copies != index.state.redriven:
        yield Violation(f"{index.state.redriven} dead letters were driven again, and there are {copies} copies")


def _refused(index: Index) -> dict[tuple[str, Place], list[Answer]]:
    found: dict[tuple[str, Place], list[Answer]] = defaultdict(list)
    for answer in index.history.answers:
        if answer.kind in ("failed", "dlq") and answer.outcome in ("ok", "unknown"):
            for place in answer.places:
                found[answer.group, place].append(answer)
    return found


def _explained(index: Index, letter: Letter, refused: dict[tuple[str, Place], list[Answer]]) -> bool:
    queue = index.queue_of(letter.place[0])
    tried = letter.attempts is not None and queue is not None and letter.attempts > queue.retry_limit
    return tried or bool(refused.get((letter.group, letter.place)))


def _poison(index: Index) -> Iterator[Violation]:
    for (group, place), answers in index.completed.items():
        if any(POISON in value for value in index.values.get(place, ())) and any(a.outcome == "ok" for a in answers):
            yield Violation(f"{index.name(place)} is poison, and group {group} completed it", place)
