"""The life of a message: everything anybody was told about it, in order, with the faults beside it."""

from faults.checker import Index, Violation
from faults.history import Ack, Place, Pop, Push

Line = tuple[float, str]


def life(index: Index, violation: Violation) -> list[str]:
    """Tell it; the message is known by its place, its value, or both."""
    place, value = violation.place, violation.value
    if place is None and value is not None:
        place = min(index.places.get(value, ()), default=None)
    values = set(index.values.get(place, {})) if place else set()
    if value is not None:
        values.add(value)
    lines = [line for each in values for push in index.pushed.get(each, ()) for line in _pushed(push, each)]
    if place is not None:
        lines += [line for pop in index.history.pops for line in _popped(pop, place)]
        lines += [line for ack in index.history.acks for line in _acked(ack, place)]
    lines += _harms(index, lines)
    begin = min((at for at, _ in lines), default=0)
    told = [f"{at - begin:9.3f} s  {text}" for at, text in sorted(lines)]
    return [*told, *_end(index, place)]


def _pushed(push: Push, value: str) -> list[Line]:
    where = ""
    if push.places:
        where = f" at {push.places[[item.value for item in push.items].index(value)]}"
    return [(push.invoked, f"{push.who} pushes {value}"), *_told(push.who, push.told, push.outcome + where)]


def _popped(pop: Pop, place: Place) -> list[Line]:
    for message in pop.messages:
        if message.place == place:
            text = f"{pop.who} has it for {pop.group}, attempt {message.attempt}, lease {pop.lease[:8]}"
            return [(pop.invoked, f"{pop.who} pops"), (pop.told, text)]
    return []


def _acked(ack: Ack, place: Place) -> list[Line]:
    if place not in ack.places:
        return []
    text = f"{ack.who} says {ack.kind} for {ack.group}, lease {ack.lease[:8]}"
    return [(ack.invoked, text), *_told(ack.who, ack.told, ack.outcome)]


def _told(who: str, at: float, text: str) -> list[Line]:
    return [] if at == float("inf") else [(at, f"{who} is told {text}")]


def _harms(index: Index, lines: list[Line]) -> list[Line]:
    """Return the faults while it lived."""
    if not lines:
        return []
    first, last = min(lines)[0], max(lines)[0]
    harms = [harm for harm in index.history.harms if harm.end >= first and harm.begin <= last]
    return [(harm.begin, f"-- {harm.fault} begins: {harm.text}") for harm in harms] + [
        (harm.end, f"-- {harm.fault} ends") for harm in harms if harm.end <= last
    ]


def _end(index: Index, place: Place | None) -> list[str]:
    if place is None:
        return ["   in the end  it is nowhere"]
    partition, offset = place
    head = index.state.heads.get(partition)
    content = index.state.log.get(place)
    gone = "deleted" if place in index.state.log or (head and offset < head.first) else "not there"
    stored = content.value if content else gone
    groups = [
        f"{group} {'past it' if offset < cursor else 'not past it'}"
        for (group, of), cursor in index.state.cursors.items()
        if of == partition
    ]
    dead = [dead_letter.group for dead_letter in index.state.dead_letters if dead_letter.place == place]
    return [f"   in the end  {index.name(place)}: {stored}; {', '.join(groups)}; dead letter of {dead or 'nobody'}"]
