"""Histories and state, arranged as the rules ask for them."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Self

from faults.history import Answer, History, Place, Pop, Push
from faults.state import AGAIN, Queue, Setup, State


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be, and the message whose life tells more."""

    text: str
    place: Place | None = None
    value: str | None = None
    rule: str = ""

    def named(self, rule: str) -> Self:
        return replace(self, rule=rule)


class Index:
    """What happened at each place, and where each value is."""

    def __init__(self, setup: Setup, history: History, state: State) -> None:
        self.setup, self.history, self.state = setup, history, state

    @cached_property
    def values(self) -> dict[Place, dict[str, str]]:
        """Every value somebody says is at a place, and who says so."""
        found: dict[Place, dict[str, str]] = defaultdict(dict)
        for push in self.history.pushes:
            for place, (_, value) in zip(push.places, push.items, strict=False):
                found[place].setdefault(value, f"a receipt of {push.who}")
        for pop in self.history.pops:
            for message in pop.messages:
                found[message.place].setdefault(message.value, f"a delivery to {pop.who}")
        log = (*self.state.log.items(), *(((lane, offset), value) for lane, offset, value in self.state.doubled))
        for place, value in log:
            if value is not None:
                found[place].setdefault(value, "the log")
        return found

    @cached_property
    def places(self) -> dict[str, set[Place]]:
        found: dict[str, set[Place]] = defaultdict(set)
        for place, values in self.values.items():
            for value in values:
                found[value].add(place)
        return found

    @cached_property
    def pushed(self) -> dict[str, list[Push]]:
        """Every attempt to push a value."""
        found: dict[str, list[Push]] = defaultdict(list)
        for push in self.history.pushes:
            for _, value in push.items:
                found[value].append(push)
        return found

    @cached_property
    def delivered(self) -> dict[tuple[str, Place], list[Pop]]:
        found: dict[tuple[str, Place], list[Pop]] = defaultdict(list)
        for pop in self.history.pops:
            for message in pop.messages:
                found[pop.group, message.place].append(pop)
        return found

    @cached_property
    def completed(self) -> dict[tuple[str, Place], list[Answer]]:
        """Answers that may have completed a message: told ok, or not told."""
        found: dict[tuple[str, Place], list[Answer]] = defaultdict(list)
        for answer in self.history.answers:
            if answer.kind == "completed" and answer.outcome in ("ok", "unknown"):
                for place in answer.places:
                    found[answer.group, place].append(answer)
        return found

    @cached_property
    def extended(self) -> set[str]:
        """Leases that somebody extended, or may have."""
        return {answer.lease for answer in self.history.answers if answer.kind == "extended"}

    @cached_property
    def letters(self) -> dict[tuple[str, Place], int]:
        found: dict[tuple[str, Place], int] = defaultdict(int)
        for letter in self.state.letters:
            found[letter.group, letter.place] += 1
        return found

    def is_missed(self, group: str, place: Place) -> bool:
        """Tell whether retention took it by a hard limit, and wrote that down."""
        lane, offset = place
        return self.has_limit(lane) and any(
            group == name and lane == of and first <= offset < end for name, of, first, end in self.state.missed
        )

    def has_limit(self, lane: int) -> bool:
        """Tell whether the queue of a lane may delete what was not read."""
        queue = self.queue_of(lane)
        return queue is not None and bool(queue.options.keys() & {"retention_seconds", "max_size"})

    def done_at(self, group: str, place: Place) -> float:
        """Return from when on a message may have been done for a group; inf: never."""
        if self.letters.get((group, place)) or self.state.log.get(place, "") is None or self.is_missed(group, place):
            return -inf
        return min((answer.invoked for answer in self.completed.get((group, place), ())), default=inf)

    def queue_of(self, lane: int) -> Queue | None:
        head = self.state.heads.get(lane)
        return next((queue for queue in self.setup.queues if head and queue.name == head.queue), None)

    def groups_of(self, lane: int) -> tuple[str, ...]:
        """Return the groups that a lane is for and that answer for what they get."""
        queue, head = self.queue_of(lane), self.state.heads[lane]
        if queue is None:
            return ()
        return tuple(group for group in queue.groups if head.only_group in (None, group))

    def sought(self, group: str, after: float, before: float) -> bool:
        """Tell whether a group may have been moved between two moments."""
        return any(seek.group == group and seek.told >= after and seek.invoked <= before for seek in self.history.seeks)

    def name(self, place: Place) -> str:
        """Name a place for people."""
        head = self.state.heads.get(place[0])
        where = f"{head.queue}/{head.partition}" if head else f"lane {place[0]}"
        return f"{where} offset {place[1]}"


def original(value: str) -> str:
    """Return the value of which this is a redriven copy, or itself."""
    return value.removesuffix(AGAIN)
