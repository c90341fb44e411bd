"""The timeline of a message: all calls about it and their results, in order, with the faults at that time."""

from faults.checker import Index, Violation
from faults.history import Ack, Location, Pop, Push

Line = tuple[float, str]


def timeline(index: Index, violation: Violation) -> list[str]:
    """Return the lines of the timeline. The message is identified by its location, its value, or both."""
    location, value = violation.location, violation.value
    if location is None and value is not None:
        location = min(index.locations.get(value, ()), default=None)
    values = set(index.values.get(location, {})) if location else set()
    if value is not None:
        values.add(value)
    lines = [line for each in values for push in index.pushed.get(each, ()) for line in _pushed(push, each)]
    if location is not None:
        lines += [line for pop in index.history.pops for line in _popped(pop, location)]
        lines += [line for ack in index.history.acks for line in _acked(ack, location)]
    lines += _injections(index, lines)
    begin = min((at for at, _ in lines), default=0)
    shown = [f"{at - begin:9.3f} s  {text}" for at, text in sorted(lines)]
    return [*shown, *_end(index, location)]


def _pushed(push: Push, value: str) -> list[Line]:
    where = ""
    if push.locations:
        where = f" at {push.locations[[item.value for item in push.items].index(value)]}"
    return [(push.invoked, f"{push.who} pushes {value}"), *_returned(push.who, push.returned, push.outcome + where)]


def _popped(pop: Pop, location: Location) -> list[Line]:
    for message in pop.messages:
        if message.location == location:
            text = f"{pop.who} gets it for {pop.group}, attempt {message.attempt}, lease {pop.lease[:8]}"
            return [(pop.invoked, f"{pop.who} pops"), (pop.returned, text)]
    return []


def _acked(ack: Ack, location: Location) -> list[Line]:
    if location not in ack.locations:
        return []
    text = f"{ack.who} acks it as {ack.kind} for {ack.group}, lease {ack.lease[:8]}"
    return [(ack.invoked, text), *_returned(ack.who, ack.returned, ack.outcome)]


def _returned(who: str, at: float, text: str) -> list[Line]:
    return [] if at == float("inf") else [(at, f"{who}: {text}")]


def _injections(index: Index, lines: list[Line]) -> list[Line]:
    """Return the faults during the timeline."""
    if not lines:
        return []
    first, last = min(lines)[0], max(lines)[0]
    injections = [
        injection for injection in index.history.injections if injection.end >= first and injection.begin <= last
    ]
    return [(injection.begin, f"-- {injection.fault} begins: {injection.text}") for injection in injections] + [
        (injection.end, f"-- {injection.fault} ends") for injection in injections if injection.end <= last
    ]


def _end(index: Index, location: Location | None) -> list[str]:
    if location is None:
        return ["   at the end  it is not stored"]
    partition, offset = location
    head = index.state.heads.get(partition)
    content = index.state.log.get(location)
    gone = "deleted" if location in index.state.log or (head and offset < head.first) else "not stored"
    stored = content.value if content else gone
    groups = [
        f"{group} {'past it' if offset < cursor else 'not past it'}"
        for (group, of), cursor in index.state.cursors.items()
        if of == partition
    ]
    dead = [dead_letter.group for dead_letter in index.state.dead_letters if dead_letter.location == location]
    return [
        f"   at the end  {index.name(location)}: {stored}; {', '.join(groups)}; dead letter of {dead or 'no group'}"
    ]
