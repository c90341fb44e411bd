"""Rules of the log: what is stored, where, and that it stays."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation, original
from faults.history import Place, Push


def one_value(index: Index) -> Iterator[Violation]:
    """Whoever speaks of a place (a receipt, a delivery, the log) speaks of the same message."""
    for place, values in index.values.items():
        if len(values) > 1:
            said = ", ".join(f"{value} ({who})" for value, who in values.items())
            yield Violation(f"{index.name(place)} holds {said}", place)


def stored_once(index: Index) -> Iterator[Violation]:
    """However often it was pushed: repeats carry its transaction id. (Copies of a redrive are another rule's.)"""
    for value, places in index.places.items():
        if len(places) > 1 and value == original(value):
            yield Violation(f"stored at {', '.join(index.name(place) for place in sorted(places))}", value=value)


def dense(index: Index) -> Iterator[Violation]:
    """No offset is left out, and none that anybody has seen is beyond the end."""
    for lane, head in index.state.heads.items():
        missing = [n for n in range(head.first, head.last + 1) if (lane, n) not in index.state.log]
        if missing:
            yield Violation(
                f"{index.name((lane, missing[0]))} and {len(missing) - 1} more are missing", (lane, missing[0])
            )
    if index.setup.loses:
        return
    for place in index.values:
        head = index.state.heads.get(place[0])
        if head is None or place[1] > head.last:
            yield Violation(f"{index.name(place)} was seen, and is beyond the end", place)


def from_nowhere(index: Index) -> Iterator[Violation]:
    """What is there was pushed by somebody, who was not told that it failed."""
    for value, places in index.places.items():
        pushes = index.pushed.get(original(value), ())
        if not pushes:
            yield Violation("nobody pushed it", min(places), value)
        elif all(push.outcome == "failed" for push in pushes):
            yield Violation("its producer was told that it failed", min(places), value)


def accepted(index: Index) -> Iterator[Violation]:
    """What a producer was told is stored is there: in the log, or below what retention has emptied."""
    for push in index.history.pushes:
        if push.outcome == "ok":
            yield from _accepted(index, push)


def _accepted(index: Index, push: Push) -> Iterator[Violation]:
    for number, (partition, value) in enumerate(push.items):
        place = push.places[number] if push.places else min(index.places.get(value, ()), default=None)
        if place is not None:
            head = index.state.heads.get(place[0])
            if head and (place[1] < head.first or index.state.log.get(place, value) is None):
                continue  # rules of deliveries see to it that it was not emptied too early
            if index.state.log.get(place) == value:
                if head and head.partition != partition:
                    yield Violation(f"pushed to {partition}, stored in {head.partition}", place, value)
                continue
        if not _forgiven(index, push):
            where = f", at {index.name(place)}" if place else ""
            yield Violation(f"{push.who} was told that it is stored{where}, and it is not there", place, value)


def lost_by_contract(index: Index) -> int:
    """Count what was accepted and is gone, where a setting allows it."""
    sound = {place: value for place, value in index.state.log.items() if value is not None}
    stored = set(sound.values())
    told = {value for push in index.history.pushes if push.outcome == "ok" for _, value in push.items}
    kept = {value for value in told if any(_below(index, place) for place in index.places.get(value, ()))}
    return len(told - stored - kept) if index.setup.loses else 0


def _below(index: Index, place: Place) -> bool:
    head = index.state.heads.get(place[0])
    return head is not None and place[1] < head.first


def _forgiven(index: Index, push: Push) -> bool:
    """Some settings may lose the last moments before a crash, and say how many."""
    loses = index.setup.loses
    return bool(loses) and any(harm.begin - loses <= push.told <= harm.end for harm in index.history.harms)
