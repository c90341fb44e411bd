"""Builds that are broken on purpose: the checker has to turn red on each of them, or it proves nothing.

Functions are changed in the private database after the install, the server by `faults.serve` in its own process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from skep.server import push
from skep.server.push import Push, Pusher, Stored


@dataclass(frozen=True, slots=True)
class Broken:
    """What is damaged, and the rules that have to notice."""

    title: str
    rules: frozenset[str]
    changes: tuple[tuple[str, str, str], ...] = ()  # function, what it says, what it says then
    sql: str = ""


BUILDS = {
    "offset-without-lock": Broken(
        "offsets are taken without the lock of the lane",
        frozenset({"one value at a place"}),
        (
            (
                "_lock_partitions",
                "cardinality(_lock_partitions.queues) FOR NO KEY UPDATE)",
                "cardinality(_lock_partitions.queues))",
            ),
        ),
        """
        ALTER TABLE skep.messages DROP CONSTRAINT messages_pkey;
        CREATE INDEX messages_pkey ON skep.messages (partition_id, "offset")
        """,
    ),
    "ack-without-token": Broken(
        "an ack counts for whoever holds the message now",
        frozenset({"a stale answer is refused"}),
        (("_queen_find", "CASE WHEN item.lease IS NULL THEN", "CASE WHEN true THEN"),),
    ),
    "early-retention": Broken(
        "retention does not ask who still has to read",
        frozenset({"retention spares what is owed", "every group gets everything"}),
        (
            (
                "_retention_of",
                "min(o.owed_from) FILTER (WHERE o.is_required) AS completed",
                "max(o.owed_from) FILTER (WHERE o.is_required) + 100000 AS completed",
            ),
        ),
    ),
    "merge-drops-one": Broken(
        "a server that merges pushes forgets the last item, and says it is stored",
        frozenset({"what was accepted is there", "one value at a place"}),
    ),
}

DEFINITION = """
    SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'skep'::regnamespace AND proname = %s
"""


def damage_database(db: psycopg.Connection[Any], name: str) -> None:
    """Change functions as the build says; a text that is not there any more is an error, not a build that is sound."""
    build = BUILDS[name]
    for function, old, new in build.changes:
        ((text,),) = db.execute(DEFINITION, [function]).fetchall()
        if text.count(old) != 1:
            raise ValueError(f'skep.{function}() does not say "{old}" once')
        db.execute(text.replace(old, new).encode())
    if build.sql:
        db.execute(build.sql.encode())


def damage_server(name: str) -> None:
    if name == "merge-drops-one":
        Pusher.__call__ = _forgetful  # type: ignore[method-assign]


_sound = Pusher.__call__


async def _forgetful(self: Pusher, pushes: Sequence[Push]) -> list[list[Stored]]:
    *others, last = pushes
    if not others or len(last.items) == 1:
        return await _sound(self, pushes)
    answers = await _sound(self, [*others, push.prepare(last.items[:-1])])
    told = answers[-1][-1]
    answers[-1].append(push.stored(told.index + 1, last.items[-1], False, _lane(told), told.offset + 1))  # noqa: FBT003
    return answers


def _lane(stored: Stored) -> int:
    digits = stored.message_id.replace("-", "")
    return int(digits[:12] + digits[13:16], 16)
