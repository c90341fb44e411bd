"""Rules of the log: what is stored, where, and that it stays."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation, original
from faults.history import AGAIN, REDRIVEN, Content, Place, Push

ANY = "*"  # a transaction id that the client has chosen


def one_value(index: Index) -> Iterator[Violation]:
    """Whoever speaks of a place (a receipt, a delivery, the log) speaks of the same message."""
    for place, values in index.values.items():
        if len(values) > 1:
            said = ", ".join(f"{value} ({who})" for value, who in values.items())
            yield Violation(f"{index.name(place)} holds {said}", place)


def unchanged(index: Index) -> Iterator[Violation]:
    """Payload, headers, transaction id and partition arrive as they were pushed: in the log, and at consumers."""
    pushed = {item.value: item for push in index.history.pushes for item in push.items}
    dead = ((each.place, each.content, f"a dead letter of {each.group}") for each in index.state.dead_letters)
    for place, content, who in (*index.contents, *dead):
        item = pushed.get(original(content.value)) if content is not None else None
        if item is not None and content is not None:
            for name, got, given in _differences(content, item):
                text = f"{who} has the {name} {got!r}, pushed was {given!r}"
                yield Violation(text, place, content.value)


def _differences(got: Content, item: Content) -> Iterator[tuple[str, object, object]]:
    """Return what differs. A copy that a redrive made has a partition and a header of its own, and no dedup key."""
    is_copy = got.value.endswith(AGAIN)
    headers = {name: text for name, text in (got.headers or {}).items() if name != REDRIVEN}
    if got.payload != item.payload:
        yield "payload", got.payload, item.payload
    if headers != (item.headers or {}):
        yield "headers", got.headers, item.headers
    if got.partition != item.partition and not is_copy:
        yield "partition", got.partition, item.partition
    given = None if is_copy else item.transaction_id
    if got.transaction_id != given and not (given == ANY and got.transaction_id):
        yield "transaction id", got.transaction_id, given


def stored_once(index: Index) -> Iterator[Violation]:
    """However often it was pushed: repeats carry its transaction id. (Copies of a redrive are another rule's.)"""
    for value, places in index.places.items():
        if len(places) > 1 and value == original(value):
            yield Violation(f"stored at {', '.join(index.name(place) for place in sorted(places))}", value=value)


def dense(index: Index) -> Iterator[Violation]:
    """No offset is left out, and none that anybody has seen is beyond the end."""
    for partition, head in index.state.heads.items():
        missing = [n for n in range(head.first, head.last + 1) if (partition, n) not in index.state.log]
        if missing:
            yield Violation(
                f"{index.name((partition, missing[0]))} and {len(missing) - 1} more are missing",
                (partition, missing[0]),
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
    for number, item in enumerate(push.items):
        value = item.value
        place = push.places[number] if push.places else min(index.places.get(value, ()), default=None)
        if place is not None:
            head = index.state.heads.get(place[0])
            stored = index.state.log.get(place)
            if head and (place[1] < head.first or (stored is None and place in index.state.log)):
                continue  # rules of deliveries see to it that it was not emptied too early
            if stored is not None and stored.value == value:
                if head and head.partition != item.partition:
                    yield Violation(f"pushed to {item.partition}, stored in {head.partition}", place, value)
                continue
        if not _forgiven(index, push):
            where = f", at {index.name(place)}" if place else ""
            yield Violation(f"{push.who} was told that it is stored{where}, and it is not there", place, value)


def lost_by_contract(index: Index) -> int:
    """Count what was accepted and is gone, where a setting allows it."""
    stored = {content.value for content in index.state.log.values() if content is not None}
    told = {item.value for push in index.history.pushes if push.outcome == "ok" for item in push.items}
    kept = {value for value in told if any(_below(index, place) for place in index.places.get(value, ()))}
    return len(told - stored - kept) if index.setup.loses else 0


def _below(index: Index, place: Place) -> bool:
    head = index.state.heads.get(place[0])
    return head is not None and place[1] < head.first


def _forgiven(index: Index, push: Push) -> bool:
    """Some settings may lose the last moments before a crash, and say how many."""
    loses = index.setup.loses
    return bool(loses) and any(harm.begin - loses <= push.told <= harm.end for harm in index.history.harms)
