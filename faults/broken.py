"""Builds that are broken on purpose: the checker has to turn red on each of them, or it proves nothing.

Functions are changed in the private database after the install, the server by `faults.serve` in its own process. Some
builds sleep for a moment where the damage is a race, so that a short run meets it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from skep.server.work import push
from skep.server.work.push import Push, Pusher, Stored

Load = Literal["slow", "quick"]


@dataclass(frozen=True, slots=True)
class Broken:
    """What is damaged, the rules that have to notice, and the load under which they do."""

    title: str
    rules: frozenset[str]
    changes: tuple[tuple[str, str, str], ...] = ()  # function, what it says, what it says then
    sql: str = ""
    load: Load = "slow"  # consumers that lose their leases now and then; or such that drain their partitions at once


BUILDS = {
    "offset-without-lock": Broken(
        "offsets are taken without the lock of the partition",
        frozenset({"one value at a place"}),
        (
            (
                "_lock_partitions",
                "FOR NO KEY UPDATE) p",
                ") p",
            ),
            (
                "_lock_partitions",
                "AND NOT q.block_without_subscribers\n        FOR NO KEY UPDATE OF p;",
                "AND NOT q.block_without_subscribers;",
            ),
            (
                "_lock_partitions",
                "FROM skep._head_of(partition_ids[1]) head;",
                "FROM skep._head_of(partition_ids[1]) head;\n            PERFORM pg_sleep(0.01);",
            ),
            (
                "_lock_partitions",
                "    IF cardinality(partition_ids) = 1 THEN",
                "    PERFORM pg_sleep(0.01);\n    IF cardinality(partition_ids) = 1 THEN",
            ),
        ),
        """
        ALTER TABLE skep.messages DROP CONSTRAINT messages_pkey;
        CREATE INDEX messages_pkey ON skep.messages (partition_id, "offset")
        """,
    ),
    "offset-again": Broken(
        "a partition that retention has emptied begins at offset 0 again",
        frozenset({"one value at a place"}),
        (("_head_of", 'greatest(m."offset" + 1, f.first_offset)', 'coalesce(m."offset" + 1, 0)'),),
        load="quick",
    ),
    "ack-of-another-lease": Broken(
        "an ack of Queen's protocol counts for the lease that holds the message now",
        frozenset({"a stale ack is refused"}),
        (("_queen_resolve_acks", "CASE WHEN item.lease IS NULL THEN", "CASE WHEN true THEN"),),
    ),
    "ack-without-lease-id": Broken(
        "an ack counts for whatever lease its group has in the partition",
        frozenset({"a stale ack is refused", "nothing again after its ack"}),
        (
            (
                "_lock_lease",
                "r.lease_id IS NOT DISTINCT FROM lease\n      AND r.expires_at",
                "r.lease_id IS NOT NULL\n      AND r.expires_at",
            ),
        ),
    ),
    "done-forgotten": Broken(
        "a lease that ends forgets the messages that were acknowledged one by one",
        frozenset({"nothing again after its ack"}),
        (
            (
                "_apply_verdict",
                "skep._messages_in(r.partition_id, r.first_offset, r.leased_to) - coalesce(r.done, '{}')",
                "skep._messages_in(r.partition_id, r.first_offset, r.leased_to)",
            ),
        ),
    ),
    "early-retention": Broken(
        "retention does not ask which groups still have to read",
        frozenset({"retention keeps what a group has to do"}),
        (
            (
                "_retention_of",
                "min(o.pending_from) FILTER (WHERE o.is_required) AS completed",
                "max(o.pending_from) FILTER (WHERE o.is_required) + 100000 AS completed",
            ),
        ),
    ),
    "retention-of-leases": Broken(
        "retention by size takes messages that are leased",
        frozenset({"retention keeps what is leased"}),
        (
            ("_retention_of", "head.next_offset, runs.lease,", "head.next_offset,"),
            ("_lock_runs_below", "r.first_offset < cut AND r.lease_id IS NULL", "r.first_offset < cut"),
        ),
    ),
    "late-snapshot": Broken(
        "discovery saves a snapshot of its end, not of its beginning",
        frozenset({"every group gets everything"}),
        (
            ("_save_discovery", "VALUES (list, known.seen, stamp", "VALUES (list, pg_current_snapshot(), stamp"),
            ("_discover", "PERFORM skep._save_discovery(", "PERFORM pg_sleep(0.02), skep._save_discovery("),
        ),
        load="quick",
    ),
    "push-drops-one": Broken(
        "a server forgets the last item of a push, and says it is stored",
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
    if name == "push-drops-one":
        Pusher.__call__ = _forgetful  # type: ignore[method-assign]


_sound = Pusher.__call__


async def _forgetful(self: Pusher, pushes: Sequence[Push]) -> list[list[Stored]]:
    *others, last = pushes
    if len(last.items) == 1:
        return await _sound(self, pushes)
    answers = await _sound(self, [*others, push.prepare(last.items[:-1])])
    told = answers[-1][-1]
    answers[-1].append(push.stored(told.index + 1, last.items[-1], False, _partition_of(told), (told.offset or 0) + 1))  # noqa: FBT003
    return answers


def _partition_of(stored: Stored) -> int:
    digits = stored.message_id.replace("-", "")
    return int(digits[:12] + digits[13:16], 16)
