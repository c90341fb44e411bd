"""Histories and state, indexed for the rules."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Self

from faults.history import COPY_SUFFIX, Ack, Content, History, Location, Pop, Push
from faults.state import Queue, Setup, State


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a rule, and the message that it is about."""

    text: str
    location: Location | None = None
    value: str | None = None
    rule: str = ""

    def named(self, rule: str) -> Self:
        return replace(self, rule=rule)


class Index:
    """The events of each location, and the locations of each value."""

    def __init__(self, setup: Setup, history: History, state: State) -> None:
        self.setup, self.history, self.state = setup, history, state

    @cached_property
    def contents(self) -> list[tuple[Location, Content, str]]:
        """Every delivered message, and every stored one: its location, its content, and the source."""
        found = [
            (message.location, message.content, f"a delivery to {pop.who}")
            for pop in self.history.pops
            for message in pop.messages
        ]
        log = (*self.state.log.items(), *(((id_, offset), content) for id_, offset, content in self.state.duplicates))
        found += [(location, content, "the log") for location, content in log if content is not None]
        return found

    @cached_property
    def values(self) -> dict[Location, dict[str, str]]:
        """The values that were reported for each location, and their sources."""
        found: dict[Location, dict[str, str]] = defaultdict(dict)
        for push in self.history.pushes:
            for location, item in zip(push.locations, push.items, strict=False):
                found[location].setdefault(item.value, f"a receipt of {push.who}")
        for location, content, who in self.contents:
            found[location].setdefault(content.value, who)
        return found

    @cached_property
    def ends(self) -> dict[int, int]:
        """The offset after the last known message of each partition."""
        found: dict[int, int] = defaultdict(int)
        for partition, offset in self.values:
            found[partition] = max(found[partition], offset + 1)
        return found

    @cached_property
    def locations(self) -> dict[str, set[Location]]:
        found: dict[str, set[Location]] = defaultdict(set)
        for location, values in self.values.items():
            for value in values:
                found[value].add(location)
        return found

    @cached_property
    def pushed(self) -> dict[str, list[Push]]:
        """All attempts to push each value."""
        found: dict[str, list[Push]] = defaultdict(list)
        for push in self.history.pushes:
            for item in push.items:
                found[item.value].append(push)
        return found

    @cached_property
    def delivered(self) -> dict[tuple[str, Location], list[Pop]]:
        found: dict[tuple[str, Location], list[Pop]] = defaultdict(list)
        for pop in self.history.pops:
            for message in pop.messages:
                found[pop.group, message.location].append(pop)
        return found

    @cached_property
    def completed(self) -> dict[tuple[str, Location], list[Ack]]:
        """Acks that may have completed a message: outcome ok or unknown."""
        found: dict[tuple[str, Location], list[Ack]] = defaultdict(list)
        for ack in self.history.acks:
            if ack.kind == "completed" and ack.outcome in ("ok", "unknown"):
                for location in ack.locations:
                    found[ack.group, location].append(ack)
        return found

    @cached_property
    def extended(self) -> set[str]:
        """Leases that may have been extended."""
        return {ack.lease for ack in self.history.acks if ack.kind == "extended"}

    @cached_property
    def dead_letters(self) -> dict[tuple[str, Location], int]:
        found: dict[tuple[str, Location], int] = defaultdict(int)
        for dead_letter in self.state.dead_letters:
            found[dead_letter.group, dead_letter.location] += 1
        return found

    def is_missed(self, group: str, location: Location) -> bool:
        """Return whether retention deleted a message by a hard limit, and recorded it as missed."""
        partition, offset = location
        return self.limit_of(partition) is not None and any(
            group == name and partition == of and first <= offset < end for name, of, first, end in self.state.missed
        )

    def limit_of(self, partition: int) -> int | None:
        """Return the number of messages that a hard limit keeps; None if there is no hard limit."""
        queue = self.queue_of(partition)
        return queue.options.get("max_size") if queue is not None else None

    def done_at(self, group: str, location: Location) -> float:
        """Return the time from which a message may have been completed by a group; inf: never."""
        tombstone = location in self.state.log and self.state.log[location] is None
        if self.dead_letters.get((group, location)) or tombstone or self.is_missed(group, location):
            return -inf
        return min((ack.invoked for ack in self.completed.get((group, location), ())), default=inf)

    def queue_of(self, partition: int) -> Queue | None:
        head = self.state.heads.get(partition)
        return next((queue for queue in self.setup.queues if head and queue.name == head.queue), None)

    def groups_of(self, partition: int) -> tuple[str, ...]:
        """Return the groups that read a partition, without those with auto_ack."""
        queue, head = self.queue_of(partition), self.state.heads[partition]
        if queue is None:
            return ()
        return tuple(group for group in queue.groups if head.only_group in (None, group))

    def was_moved(self, group: str, after: float, before: float) -> bool:
        """Return whether a seek may have moved a group between two times."""
        return any(
            seek.group == group and seek.returned >= after and seek.invoked <= before for seek in self.history.seeks
        )

    def name(self, location: Location) -> str:
        """Return a description of a location."""
        head = self.state.heads.get(location[0])
        where = f"{head.queue}/{head.partition}" if head else f"partition {location[0]}"
        return f"{where} offset {location[1]}"


def original(value: str) -> str:
    """Return the value of the original of a redriven copy; other values unchanged."""
    return value.removesuffix(COPY_SUFFIX)
