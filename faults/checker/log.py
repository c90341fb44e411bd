"""Rules for the log: messages are stored once, unchanged, at one offset."""

from collections.abc import Iterator

from faults.checker.index import Index, Violation, original
from faults.history import COPY_SUFFIX, REDRIVEN, Content, Location, Push

ANY = "*"  # any transaction id, which the client has generated


def one_value(index: Index) -> Iterator[Violation]:
    """Receipts, deliveries and the log agree on the message at each offset."""
    for location, values in index.values.items():
        if len(values) > 1:
            found = ", ".join(f"{value} ({who})" for value, who in values.items())
            yield Violation(f"{index.name(location)} has {found}", location)


def unchanged(index: Index) -> Iterator[Violation]:
    """Payload, headers, transaction id and partition arrive as they were pushed: in the log, and at consumers."""
    pushed = {item.value: item for push in index.history.pushes for item in push.items}
    dead = ((each.location, each.content, f"a dead letter of {each.group}") for each in index.state.dead_letters)
    for location, content, who in (*index.contents, *dead):
        item = pushed.get(original(content.value)) if content is not None else None
        if item is not None and content is not None:
            for name, got, given in _differences(content, item):
                text = f"{who} has {name} {got!r}, but {given!r} was pushed"
                yield Violation(text, location, content.value)


def _differences(got: Content, item: Content) -> Iterator[tuple[str, object, object]]:
    """Yield differences. A redriven copy has another partition, an additional header and no transaction id."""
    is_copy = got.value.endswith(COPY_SUFFIX)
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
    """A message is stored once, even if it was pushed again. (Another rule checks redriven copies.)"""
    for value, locations in index.locations.items():
        if len(locations) > 1 and value == original(value):
            yield Violation(
                f"stored at {', '.join(index.name(location) for location in sorted(locations))}", value=value
            )


def dense(index: Index) -> Iterator[Violation]:
    """There are no gaps between offsets, and no known message is beyond the end."""
    for partition, head in index.state.heads.items():
        missing = [n for n in range(head.first, head.last + 1) if (partition, n) not in index.state.log]
        if missing:
            yield Violation(
                f"{index.name((partition, missing[0]))} and {len(missing) - 1} more are missing",
                (partition, missing[0]),
            )
    if index.setup.loses:
        return
    for location in index.values:
        head = index.state.heads.get(location[0])
        if head is None or location[1] > head.last:
            yield Violation(f"{index.name(location)} was reported, but is beyond the end", location)


def from_nowhere(index: Index) -> Iterator[Violation]:
    """Every stored message was pushed, and its push did not fail."""
    for value, locations in index.locations.items():
        pushes = index.pushed.get(original(value), ())
        if not pushes:
            yield Violation("it was never pushed", min(locations), value)
        elif all(push.outcome == "failed" for push in pushes):
            yield Violation("its push failed", min(locations), value)


def accepted(index: Index) -> Iterator[Violation]:
    """Every accepted message is in the log, or was deleted by retention."""
    for push in index.history.pushes:
        if push.outcome == "ok":
            yield from _accepted(index, push)


def _accepted(index: Index, push: Push) -> Iterator[Violation]:
    for number, item in enumerate(push.items):
        value = item.value
        location = push.locations[number] if push.locations else min(index.locations.get(value, ()), default=None)
        if location is not None:
            head = index.state.heads.get(location[0])
            stored = index.state.log.get(location)
            if head and (location[1] < head.first or (stored is None and location in index.state.log)):
                continue  # other rules check that retention did not delete it too early
            if stored is not None and stored.value == value:
                if head and head.partition != item.partition:
                    yield Violation(f"pushed to {item.partition}, stored in {head.partition}", location, value)
                continue
        if not _may_be_lost(index, push):
            where = f", at {index.name(location)}" if location else ""
            yield Violation(f"the push of {push.who} was accepted{where}, but it is not stored", location, value)


def lost_by_contract(index: Index) -> int:
    """Count accepted messages that were lost, if a setting allows it."""
    stored = {content.value for content in index.state.log.values() if content is not None}
    accepted_values = {item.value for push in index.history.pushes if push.outcome == "ok" for item in push.items}
    kept = {
        value
        for value in accepted_values
        if any(_below(index, location) for location in index.locations.get(value, ()))
    }
    return len(accepted_values - stored - kept) if index.setup.loses else 0


def _below(index: Index, location: Location) -> bool:
    head = index.state.heads.get(location[0])
    return head is not None and location[1] < head.first


def _may_be_lost(index: Index, push: Push) -> bool:
    """Return whether a setting allows to lose the push: it was shortly before a crash."""
    loses = index.setup.loses
    return bool(loses) and any(
        injection.begin - loses <= push.returned <= injection.end for injection in index.history.injections
    )
