"""The clients that popped from a queue for a group in the last minutes, by address and subject.

Clients do not join or leave a group, so this is not a register: it lists the clients that this process has seen.
Consumers that use the database directly are missing. The leases of all consumers are in the database.
"""

import time
from typing import Self

import msgspec

FORGET = 300.0  # seconds without a pop
ROOM = 1000  # members that are remembered

Name = tuple[str, str, str, str | None]


class Member(msgspec.Struct):
    """One client on one queue for one group; the queue is "" for pops of a namespace or task. `with` it is popping."""

    queue: str
    group: str
    address: str
    subject: str | None
    since: float  # seconds since 1970
    seen: float
    waiting: int = 0  # pops that are waiting now
    messages: int = 0

    def __enter__(self) -> Self:
        self.seen = time.time()
        self.waiting += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.seen = time.time()
        self.waiting -= 1


class Members:
    """The members that this process has seen."""

    def __init__(self) -> None:
        self._members: dict[Name, Member] = {}

    def of(self, queue: str, group: str, address: str, subject: str | None) -> Member:
        name = (queue, group, address, subject)
        member = self._members.get(name)
        if member is None:
            now = time.time()
            self._make_room(now)
            member = self._members[name] = Member(queue, group, address, subject, now, now)
        return member

    def _make_room(self, now: float) -> None:
        if len(self._members) >= ROOM:
            self._members = {name: each for name, each in self._members.items() if _is_here(each, now)}
        while len(self._members) >= ROOM:
            self._members.pop(next(iter(self._members)))

    def here(self) -> list[Member]:
        now = time.time()
        return [each for each in self._members.values() if _is_here(each, now)]


def _is_here(member: Member, now: float) -> bool:
    return member.waiting > 0 or now - member.seen < FORGET
