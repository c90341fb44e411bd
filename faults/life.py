"""The life of a message: everything anybody was told about it, in order, with the faults beside it."""

from faults.checker import Index, Violation
from faults.history import Answer, Place, Pop, Push

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
        lines += [line for answer in index.history.answers for line in _answered(answer, place)]
    lines += _harms(index, lines)
    begin = min((at for at, _ in lines), default=0)
    told = [f"{at - begin:9.3f} s  {text}" for at, text in sorted(lines)]
    return [*told, *_end(index, place)]


def _pushed(push: Push, value: str) -> list[Line]:
    where = ""
    if push.places:
        where = f" at {push.places[[each for _, each in push.items].index(value)]}"
    return [(push.invoked, f"{push.who} pushes {value}"), *_told(push.who, push.told, push.outcome + where)]


def _popped(pop: Pop, place: Place) -> list[Line]:
    for message in pop.messages:
        if message.place == place:
            text = f"{pop.who} has it for {pop.group}, attempt {message.attempt}, lease {pop.lease[:8]}"
            return [(pop.invoked or pop.told, f"{pop.who} pops"), (pop.told, text)]
    return []


def _answered(answer: Answer, place: Place) -> list[Line]:
    if place not in answer.places:
        return []
    text = f"{answer.who} says {answer.kind} for {answer.group}, lease {answer.lease[:8]}"
    return [(answer.invoked, text), *_told(answer.who, answer.told, answer.outcome)]


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
    lane, offset = place
    head = index.state.heads.get(lane)
    stored = index.state.log.get(place, "deleted" if head and offset < head.first else "not there")
    groups = [
        f"{group} {'past it' if offset < cursor else 'not past it'}"
        for (group, of), (_, cursor) in index.state.cursors.items()
        if of == lane
    ]
    dead = [letter.group for letter in index.state.letters if letter.place == place]
    return [f"   in the end  {index.name(place)}: {stored}; {', '.join(groups)}; dead letter of {dead or 'nobody'}"]
