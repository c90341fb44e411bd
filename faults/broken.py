"""Builds that are broken on purpose: the checker has to find a violation in each of them.

Functions are changed in the private database after the install, the server by `faults.serve` in its own process. If
the defect is a race, the build sleeps for a moment, so that a short run hits it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg

from skep.server.work.push import Push, Pushed, Pusher, prepare

Load = Literal["slow", "quick"]


@dataclass(frozen=True, slots=True)
class Broken:
    """A defect, the rules that have to find it, and the load under which they do."""

    title: str
    rules: frozenset[str]
    changes: tuple[tuple[str, str, str], ...] = ()  # function, old text, new text
    sql: str = ""
    load: Load = "slow"  # slow: leases expire now and then; quick: partitions are drained at once


BUILDS = {
    "offset-without-lock": Broken(
        "offsets are taken without the lock of the partition",
        frozenset({"one message at an offset"}),
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
        "a partition that retention has emptied restarts at offset 0",
        frozenset({"one message at an offset"}),
        (("_head_of", 'greatest(m."offset" + 1, f.first_offset)', 'coalesce(m."offset" + 1, 0)'),),
        load="quick",
    ),
    "ack-of-another-lease": Broken(
        "an ack of Queen's protocol counts for the lease that holds the message now",
        frozenset({"a stale ack is rejected"}),
        (("_queen_resolve_acks", "CASE WHEN item.lease IS NULL THEN", "CASE WHEN true THEN"),),
    ),
    "ack-without-lease-id": Broken(
        "an ack counts for any lease of its group in the partition",
        frozenset({"a stale ack is rejected", "no delivery after the ack"}),
        (
            (
                "_lock_lease",
                "r.lease_id IS NOT DISTINCT FROM lease\n      AND r.expires_at",
                "r.lease_id IS NOT NULL\n      AND r.expires_at",
            ),
        ),
    ),
    "done-forgotten": Broken(
        "the end of a lease ignores messages that were acknowledged one by one",
        frozenset({"no delivery after the ack"}),
        (
            (
                "_apply_verdict",
                "skep._messages_in(r.partition_id, r.first_offset, r.leased_to) - coalesce(r.done, '{}')",
                "skep._messages_in(r.partition_id, r.first_offset, r.leased_to)",
            ),
        ),
    ),
    "early-retention": Broken(
        "retention ignores pending groups",
        frozenset({"retention keeps pending messages"}),
        (
            (
                "_retention_of",
                "min(o.pending_from) FILTER (WHERE o.is_required) AS completed",
                "max(o.pending_from) FILTER (WHERE o.is_required) + 100000 AS completed",
            ),
        ),
    ),
    "retention-of-leases": Broken(
        "retention by size deletes leased messages",
        frozenset({"retention keeps leased messages"}),
        (
            ("_retention_of", "head.next_offset, runs.lease,", "head.next_offset,"),
            ("_lock_runs_below", "r.first_offset < cut AND r.lease_id IS NULL", "r.first_offset < cut"),
        ),
    ),
    "late-snapshot": Broken(
        "discovery saves the snapshot of its end, not of its beginning",
        frozenset({"every group completes every message"}),
        (
            ("_save_discovery", "VALUES (list, known.seen, stamp", "VALUES (list, pg_current_snapshot(), stamp"),
            ("_discover", "PERFORM skep._save_discovery(", "PERFORM pg_sleep(0.02), skep._save_discovery("),
        ),
        load="quick",
    ),
    "push-drops-one": Broken(
        "a server drops the last item of a push, and reports that it is stored",
        frozenset({"accepted messages are stored", "one message at an offset"}),
    ),
}

DEFINITION = """
    SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'skep'::regnamespace AND proname = %s
"""


def damage_database(db: psycopg.Connection[Any], name: str) -> None:
    """Change the functions of a build. Raise ValueError if a function no longer has the old text."""
    build = BUILDS[name]
    for function, old, new in build.changes:
        ((text,),) = db.execute(DEFINITION, [function]).fetchall()
        if text.count(old) != 1:
            raise ValueError(f'skep.{function}() must contain "{old}" once')
        db.execute(text.replace(old, new).encode())
    if build.sql:
        db.execute(build.sql.encode())


def damage_server(name: str) -> None:
    if name == "push-drops-one":
        Pusher.__call__ = _push_without_last  # type: ignore[method-assign]


_original = Pusher.__call__


async def _push_without_last(self: Pusher, pushes: Sequence[Push]) -> list[Pushed]:
    *others, last = pushes
    if len(last.items) == 1:
        return await _original(self, pushes)
    *results, pushed = await _original(self, [*others, prepare(last.items[:-1])])
    offset = (pushed.offsets[-1] or 0) + 1
    partition_ids = [*pushed.partition_ids, pushed.partition_ids[-1]]
    return [*results, Pushed([*pushed.duplicates, False], partition_ids, [*pushed.offsets, offset], pushed.delayed)]
