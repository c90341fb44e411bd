"""Histories and state, arranged as the rules ask for them."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Self

from faults.history import AGAIN, Ack, Content, History, Place, Pop, Push
from faults.state import Queue, Setup, State


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
    def contents(self) -> list[tuple[Place, Content, str]]:
        """Every whole message that a consumer got, or that is stored at the end: its place, and who has it."""
        found = [
            (message.place, message.content, f"a delivery to {pop.who}")
            for pop in self.history.pops
            for message in pop.messages
        ]
        log = (*self.state.log.items(), *(((id_, offset), content) for id_, offset, content in self.state.doubled))
        found += [(place, content, "the log") for place, content in log if content is not None]
        return found

    @cached_property
    def values(self) -> dict[Place, dict[str, str]]:
        """Every value somebody says is at a place, and who says so."""
        found: dict[Place, dict[str, str]] = defaultdict(dict)
        for push in self.history.pushes:
            for place, item in zip(push.places, push.items, strict=False):
                found[place].setdefault(item.value, f"a receipt of {push.who}")
        for place, content, who in self.contents:
            found[place].setdefault(content.value, who)
        return found

    @cached_property
    def ends(self) -> dict[int, int]:
        """The offset behind the last one of each partition that anybody was told of."""
        found: dict[int, int] = defaultdict(int)
        for partition, offset in self.values:
            found[partition] = max(found[partition], offset + 1)
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
            for item in push.items:
                found[item.value].append(push)
        return found

    @cached_property
    def delivered(self) -> dict[tuple[str, Place], list[Pop]]:
        found: dict[tuple[str, Place], list[Pop]] = defaultdict(list)
        for pop in self.history.pops:
            for message in pop.messages:
                found[pop.group, message.place].append(pop)
        return found

    @cached_property
    def completed(self) -> dict[tuple[str, Place], list[Ack]]:
        """Acks that may have completed a message: told ok, or not told."""
        found: dict[tuple[str, Place], list[Ack]] = defaultdict(list)
        for ack in self.history.acks:
            if ack.kind == "completed" and ack.outcome in ("ok", "unknown"):
                for place in ack.places:
                    found[ack.group, place].append(ack)
        return found

    @cached_property
    def extended(self) -> set[str]:
        """Leases that somebody extended, or may have."""
        return {ack.lease for ack in self.history.acks if ack.kind == "extended"}

    @cached_property
    def dead_letters(self) -> dict[tuple[str, Place], int]:
        found: dict[tuple[str, Place], int] = defaultdict(int)
        for dead_letter in self.state.dead_letters:
            found[dead_letter.group, dead_letter.place] += 1
        return found

    def is_missed(self, group: str, place: Place) -> bool:
        """Tell whether retention took it by a hard limit, and wrote that down."""
        partition, offset = place
        return self.limit_of(partition) is not None and any(
            group == name and partition == of and first <= offset < end for name, of, first, end in self.state.missed
        )

    def limit_of(self, partition: int) -> int | None:
        """Return how many messages a partition keeps at least, read or not; None: it deletes nothing that is unread."""
        queue = self.queue_of(partition)
        return queue.options.get("max_size") if queue is not None else None

    def done_at(self, group: str, place: Place) -> float:
        """Return from when on a message may have been done for a group; inf: never."""
        tombstone = place in self.state.log and self.state.log[place] is None
        if self.dead_letters.get((group, place)) or tombstone or self.is_missed(group, place):
            return -inf
        return min((ack.invoked for ack in self.completed.get((group, place), ())), default=inf)

    def queue_of(self, partition: int) -> Queue | None:
        head = self.state.heads.get(partition)
        return next((queue for queue in self.setup.queues if head and queue.name == head.queue), None)

    def groups_of(self, partition: int) -> tuple[str, ...]:
        """Return the groups that a partition is for and that ack for what they get."""
        queue, head = self.queue_of(partition), self.state.heads[partition]
        if queue is None:
            return ()
        return tuple(group for group in queue.groups if head.only_group in (None, group))

    def sought(self, group: str, after: float, before: float) -> bool:
        """Tell whether a group may have been moved between two moments."""
        return any(seek.group == group and seek.told >= after and seek.invoked <= before for seek in self.history.seeks)

    def name(self, place: Place) -> str:
        """Name a place for people."""
        head = self.state.heads.get(place[0])
        where = f"{head.queue}/{head.partition}" if head else f"partition {place[0]}"
        return f"{where} offset {place[1]}"


def original(value: str) -> str:
    """Return the value of which this is a redriven copy, or itself."""
    return value.removesuffix(AGAIN)
