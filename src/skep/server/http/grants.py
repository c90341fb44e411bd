"""Rights: the actions that an identity may take on a queue.

An identity has roles, which hold on every queue, and grants, which hold on the queues whose names match a pattern:

    read-only     read
    write-only    push
    read-write    push, pop, ack, seek, configure, read, redrive
    admin         everything

    {"orders.*": ["push", "pop", "ack"], "mail": []}

1. `*` in a pattern stands for any characters, also for none and for dots. Every other character is itself.
2. On a queue that no pattern matches, the roles decide; what several roles give adds up.
3. On a queue that patterns match, the grants of all of these patterns add up and take the place of the roles. So a
   grant can narrow (`"mail": []` takes everything from a role) or add.
4. Without a role, an identity may do what its grants say and nothing else; without either, nothing.
5. `admin` in a grant is every action on these queues.
6. A request that names no queue (it pops by namespace, changes the system, …) asks for every queue there is or will
   be: roles must give the action and no grant take it away, or a grant of `*` must give it.
7. A list of queues is for everyone who may read some of them, and shows those (`allows_somewhere`, then `visible`).
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Self, cast, get_args

from skep.errors import Forbidden, InvalidArgument

Action = Literal["push", "pop", "ack", "seek", "configure", "read", "redrive", "admin"]

ACTIONS: frozenset[Action] = frozenset(get_args(Action))
LONGEST_PATTERN = 255  # as queue names
MOST_GRANTS = 1000


class Role(StrEnum):
    """A name for actions on every queue."""

    ADMIN = "admin"
    READ_WRITE = "read-write"
    READ_ONLY = "read-only"
    WRITE_ONLY = "write-only"

    @property
    def actions(self) -> frozenset[Action]:
        return ROLE_ACTIONS[self]


ROLE_ACTIONS: dict[Role, frozenset[Action]] = {
    Role.ADMIN: ACTIONS,
    Role.READ_WRITE: ACTIONS - {"admin"},
    Role.READ_ONLY: frozenset({"read"}),
    Role.WRITE_ONLY: frozenset({"push"}),
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name with `*` in it, in the pieces between them. Matching is linear: a pattern cannot be made to cost time."""

    pieces: tuple[str, ...]

    def matches(self, name: str) -> bool:
        first, *middle = self.pieces
        if not middle:
            return name == first
        last = middle.pop()
        place, end = len(first), len(name) - len(last)
        if not (name.startswith(first) and name.endswith(last) and place <= end):
            return False
        for piece in middle:
            found = name.find(piece, place, end)
            if found < 0:
                return False
            place = found + len(piece)
        return True


EVERY_QUEUE = Pattern(("", ""))


@dataclass(frozen=True, slots=True)
class Grants:
    """Actions by pattern. Made by `parse`, which refuses unknown actions."""

    by_pattern: tuple[tuple[Pattern, frozenset[Action]], ...] = ()

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read `{"pattern": ["action", …]}`.

        Anything else raises InvalidArgument: a grant that is ignored may have been one that narrows.
        """
        if not isinstance(value, dict):
            raise InvalidArgument("grants are not an object of lists of actions")
        items = cast("dict[object, object]", value)
        if len(items) > MOST_GRANTS:
            raise InvalidArgument(f"there are more than {MOST_GRANTS} grants")
        return cls(tuple((_pattern(pattern), _actions(actions)) for pattern, actions in items.items()))

    def on(self, queue: str) -> frozenset[Action] | None:
        """Return the actions of all patterns that match; None: none matches."""
        found = [actions for pattern, actions in self.by_pattern if pattern.matches(queue)]
        return frozenset[Action]().union(*found) if found else None

    def on_every_queue(self) -> frozenset[Action] | None:
        """Return the actions of the pattern `*`; None: there is no such pattern."""
        found = [actions for pattern, actions in self.by_pattern if pattern == EVERY_QUEUE]
        return frozenset[Action]().union(*found) if found else None


def _pattern(text: object) -> Pattern:
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_PATTERN:
        raise InvalidArgument(f"the pattern of a grant is not a text of 1 to {LONGEST_PATTERN} characters")
    first, *rest = text.split("*")
    if not rest:
        return Pattern((first,))
    return Pattern((first, *(piece for piece in rest[:-1] if piece), rest[-1]))


def _actions(value: object) -> frozenset[Action]:
    if not isinstance(value, list):
        raise InvalidArgument("the actions of a grant are not a list")
    actions = cast("list[object]", value)
    if not all(isinstance(action, str) and action in ACTIONS for action in actions):
        raise InvalidArgument("a grant has an unknown action", hint=f"actions: {', '.join(sorted(ACTIONS))}")
    return ACTIONS if "admin" in actions else frozenset(cast("list[Action]", actions))


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller and its rights. `subject` becomes the producer of pushed messages."""

    subject: str | None = None
    roles: frozenset[Role] = frozenset()
    grants: Grants = Grants()
    from_roles: frozenset[Action] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        together = frozenset[Action]().union(*(role.actions for role in self.roles))
        object.__setattr__(self, "from_roles", together)

    def allows(self, action: Action, queue: str | None) -> bool:
        """Return true if an action is allowed on a queue; None: on every queue, present and future."""
        if not self.grants.by_pattern:
            return action in self.from_roles
        if queue is None:
            return self._allows_everywhere(action)
        granted = self.grants.on(queue)
        return action in (self.from_roles if granted is None else granted)

    def _allows_everywhere(self, action: Action) -> bool:
        granted = self.grants.on_every_queue()
        if granted is not None:
            return action in granted
        return action in self.from_roles and all(action in actions for _, actions in self.grants.by_pattern)

    def allows_somewhere(self, action: Action) -> bool:
        """Return true if there can be a queue on which an action is allowed, so that lists may be filtered."""
        return self.allows(action, None) or (
            any(action in actions for _, actions in self.grants.by_pattern)
            or (action in self.from_roles and self.grants.on_every_queue() is None)
        )

    def visible(self, queue: str) -> bool:
        """Return true if a queue appears in lists."""
        return self.allows("read", queue)

    def require(self, action: Action, queue: str | None) -> None:
        if not self.allows(action, queue):
            raise Forbidden(INSUFFICIENT, detail=f"{action} on {'every queue' if queue is None else queue!r}")

    def require_somewhere(self, action: Action) -> None:
        if not self.allows_somewhere(action):
            raise Forbidden(INSUFFICIENT, detail=f"{action} on any queue")


INSUFFICIENT = "Insufficient permissions"  # Queen's text
ANYONE = Identity(roles=frozenset({Role.ADMIN}))  # without authentication
