"""The state of the database at the end of a round, and its setup, for the checker."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from faults.history import Content, Location


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, and the groups that read it."""

    name: str
    groups: tuple[str, ...] = ()
    auto_groups: tuple[str, ...] = ()  # groups with auto_ack: at-most-once delivery
    concurrency: int = 1
    retry_limit: int = 1000
    lease_time: float = 2
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setup:
    """The setup of a round. `loses`: seconds before a fault whose pushes a setting may lose."""

    queues: tuple[Queue, ...]
    clocks_jump: bool = False
    loses: float = 0

    def queue(self, name: str) -> Queue:
        return next(queue for queue in self.queues if queue.name == name)


@dataclass(frozen=True, slots=True)
class Head:
    """A partition and its first and last offset. A partition of redriven messages is for one group."""

    queue: str
    partition: str
    first: int
    last: int
    only_group: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, or the audit record of a redriven one, whose attempts and content are None."""

    group: str
    location: Location
    attempts: int | None
    content: Content | None = None


@dataclass(slots=True)
class State:
    """The final state of the database, of the servers and of their connections."""

    log: dict[Location, Content | None] = field(default_factory=dict)  # None: a tombstone
    crowd: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # last offset and cursor of the partitions of the crowd
    duplicates: list[tuple[int, int, Content | None]] = field(
        default_factory=list
    )  # further messages at the same offset
    heads: dict[int, Head] = field(default_factory=dict)
    cursors: dict[tuple[str, int], int] = field(default_factory=dict)  # of each group
    dead_letters: list[DeadLetter] = field(default_factory=list)
    redriven: int = 0  # number of redriven dead letters
    missed: list[tuple[str, int, int, int]] = field(default_factory=list)  # group, partition, first, end
    rows: set[str] = field(default_factory=set)  # values in the table of the outbox producer
    broken: dict[str, int] = field(default_factory=dict)  # of check_consistency()
    leases: int = 0
    connections: int = 0
    most_connections: int = 0
    in_transaction: int = 0
    dead_tuples: int = 0
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)  # MB of each server, before and after


CROWD = "crowded"  # a queue of many partitions and a long one; its messages are recorded as ranges
MANY = "many"  # its group
HEADS = """
    SELECT l.partition_id, q.name, p.name, l.first_offset, l.last_offset, p.only_group FROM skep.partition_lookup l
    JOIN skep.partitions p ON p.id = l.partition_id JOIN skep.queues q ON q.id = p.queue_id
    WHERE q.name <> %(crowd)s
"""
LOG = """
    SELECT m.partition_id, m."offset", p.name, m.payload, m.headers, m.transaction_id
    FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id JOIN skep.queues q ON q.id = p.queue_id
    WHERE q.name <> %(crowd)s
"""
IN_CROWD = """
    SELECT l.partition_id, l.last_offset, coalesce(c.cursor, 0) FROM skep.queues q
    JOIN skep.partitions p ON p.queue_id = q.id JOIN skep.partition_lookup l ON l.partition_id = p.id
    LEFT JOIN skep.group_queues g ON g.queue_id = q.id AND g.group_name = %(many)s
    LEFT JOIN skep.partition_consumers c ON c.partition_id = p.id AND c.group_queue_id = g.id
    WHERE q.name = %(crowd)s
"""
CURSORS = """
    SELECT g.group_name, c.partition_id, c.cursor
    FROM skep.partition_consumers c JOIN skep.group_queues g ON g.id = c.group_queue_id WHERE g.group_name <> %(many)s
"""
DEAD_LETTERS = """
    SELECT group_name, partition_id, "offset", attempts, partition, payload, headers, transaction_id
    FROM skep.dead_letters
    UNION ALL
    SELECT a.group_name, p.id, a."offset", NULL, p.name, NULL, NULL, NULL FROM skep.dead_letter_audit a
    JOIN skep.queues q ON q.name = a.queue JOIN skep.partitions p ON p.queue_id = q.id AND p.name = a.partition
"""
MISSED = "SELECT group_name, partition_id, first_offset, end_offset FROM skep.missed_messages"
# Rows that VACUUM could not remove, because of an old snapshot.
DEAD_TUPLES = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'skep'"
CONNECTIONS = """
    SELECT count(*), count(*) FILTER (WHERE state LIKE 'idle in transaction%%') FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
ROWS_TABLE = "CREATE TABLE IF NOT EXISTS public.rows (value text NOT NULL)"


def read(url: str) -> State:
    """Read the state in one snapshot. Then vacuum, and count the rows that cannot be removed."""
    state = State()
    with psycopg.connect(url, row_factory=tuple_row) as db:
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        names = {"crowd": CROWD, "many": MANY}
        state.heads = {partition: Head(*rest) for partition, *rest in db.execute(HEADS, names)}
        state.crowd = {partition: (last, cursor) for partition, last, cursor in db.execute(IN_CROWD, names)}
        for partition, offset, *content in db.execute(LOG, names):
            stored = _content(content)
            if state.log.setdefault((partition, offset), stored) != stored:
                state.duplicates.append((partition, offset, stored))
        state.cursors = {(group, partition): cursor for group, partition, cursor in db.execute(CURSORS, names)}
        state.dead_letters = [_dead_letter(*row) for row in db.execute(DEAD_LETTERS)]
        ((state.redriven,),) = db.execute("SELECT count(*) FROM skep.dead_letter_audit WHERE action = 'redriven'")
        state.missed = [*db.execute(MISSED)]
        state.rows = {value for (value,) in db.execute("SELECT value FROM public.rows")}
        state.broken = {name: count for name, count in db.execute("SELECT * FROM skep.check_consistency()") if count}
        ((state.leases,),) = db.execute("SELECT count(*) FROM skep.leases")
        ((state.connections, state.in_transaction),) = db.execute(CONNECTIONS)
    with psycopg.connect(url, autocommit=True, row_factory=tuple_row) as db:
        db.execute("VACUUM")
        ((state.dead_tuples,),) = db.execute(DEAD_TUPLES)
    return state


def _content(fields: Sequence[Any] | None) -> Content | None:
    """Return a stored message, None if its payload was deleted."""
    return None if fields is None or fields[1] is None else Content(*fields)


def _dead_letter(group: str, partition: int, offset: int, attempts: int | None, *content: Any) -> DeadLetter:
    return DeadLetter(group, (partition, offset), attempts, _content(content))


def save(directory: Path, setup: Setup, state: State) -> None:
    """Save the setup and the state, so that they can be checked again."""
    (directory / "setup.json").write_text(json.dumps(asdict(setup)))
    kept = asdict(state) | {
        "log": [[*location, value] for location, value in state.log.items()],
        "crowd": [[partition, *ends] for partition, ends in state.crowd.items()],
        "heads": [[partition, *asdict(head).values()] for partition, head in state.heads.items()],
        "cursors": [[*key, cursor] for key, cursor in state.cursors.items()],
        "dead_letters": [
            [each.group, *each.location, each.attempts, *(each.content or [None] * 4)] for each in state.dead_letters
        ],
        "rows": sorted(state.rows),
    }
    (directory / "state.json").write_text(json.dumps(kept))


def load(directory: Path) -> tuple[Setup, State]:
    setup = json.loads((directory / "setup.json").read_text())
    queues = tuple(Queue(**{name: _tuple(value) for name, value in queue.items()}) for queue in setup.pop("queues"))
    kept = json.loads((directory / "state.json").read_text())
    kept |= {
        "log": {(partition, offset): _content(content) for partition, offset, content in kept["log"]},
        "crowd": {partition: (last, cursor) for partition, last, cursor in kept["crowd"]},
        "heads": {partition: Head(*rest) for partition, *rest in kept["heads"]},
        "cursors": {(group, partition): cursor for group, partition, cursor in kept["cursors"]},
        "dead_letters": [_dead_letter(*row) for row in kept["dead_letters"]],
        "missed": [tuple(row) for row in kept["missed"]],
        "duplicates": [(partition, offset, _content(content)) for partition, offset, content in kept["duplicates"]],
        "rows": set(kept["rows"]),
        "memory": {name: tuple(sizes) for name, sizes in kept["memory"].items()},
    }
    return Setup(queues, **setup), State(**kept)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
