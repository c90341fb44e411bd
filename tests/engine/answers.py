"""Ways to answer the messages of a lease. One letter for each: completed, failed, dlq, or none yet (a dot)."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from tests.engine.verbs import Row, call, pop

STATUSES = {"c": "completed", "f": "failed", "a": "failed_alone", "d": "dead_letter", "r": "release"}


def _given(deliveries: list[Row], letters: Sequence[str]) -> list[tuple[Row, str]]:
    return [(message, letter) for message, letter in zip(deliveries, letters, strict=True) if letter != "."]


def say(connection: psycopg.Connection, message: Row, letter: str) -> None:
    """Answer one message, by the verb that people would use."""
    if letter == "c":
        call(connection, "ack", lease=message.lease, id=message.id)
    else:
        verb = {"f": "fail", "d": "dead_letter"}[letter]
        call(connection, verb, lease=message.lease, error=f"error {message.offset}", id=message.id)


def one_by_one(connection: psycopg.Connection, deliveries: list[Row], letters: Sequence[str]) -> None:
    for message, letter in _given(deliveries, letters):
        say(connection, message, letter)


def backwards(connection: psycopg.Connection, deliveries: list[Row], letters: Sequence[str]) -> None:
    one_by_one(connection, deliveries[::-1], letters[::-1])


def as_batch(connection: psycopg.Connection, deliveries: list[Row], letters: Sequence[str]) -> None:
    given = _given(deliveries, letters)
    applied = call(
        connection,
        "ack_many",
        leases=[message.lease for message, _ in given],
        ids=[message.id for message, _ in given],
        statuses=[STATUSES[letter] for _, letter in given],
        errors=[f"error {message.offset}" for message, _ in given],
    )
    assert [row.applied for row in applied] == [True] * len(given)


def in_transaction(connection: psycopg.Connection, deliveries: list[Row], letters: Sequence[str]) -> None:
    call(connection, "transaction", operations=Jsonb([
        {"ack": {
            "lease": str(message.lease), "id": str(message.id), "status": STATUSES[letter],
            "error": f"error {message.offset}",
        }}
        for message, letter in _given(deliveries, letters)
    ]))  # fmt: skip


WAYS = [one_by_one, backwards, as_batch, in_transaction]


def dead_letters(connection: psycopg.Connection, queue: str) -> list[Row]:
    query = "SELECT * FROM skep.dead_letters WHERE queue = %s ORDER BY id"
    return connection.cursor(row_factory=namedtuple_row).execute(query, [queue]).fetchall()


def dead_offsets(connection: psycopg.Connection, queue: str) -> list[int]:
    return sorted(row.offset for row in dead_letters(connection, queue))


def runs(connection: psycopg.Connection, queue: str, **options: Any) -> list[tuple[list[int], int]]:
    """Pop and complete until nothing comes; return the offsets and the attempt of each run."""
    taken: list[tuple[list[int], int]] = []
    while deliveries := pop(connection, queue, **options):
        call(connection, "ack", lease=deliveries[0].lease)
        taken.append(([message.offset for message in deliveries], deliveries[0].attempt))
    return taken


def progress(connection: psycopg.Connection) -> list[list[Row]]:
    """Return everything that an answer may change, as text."""
    tables = ("runs", "starts", "dead_letters", "messages", "partition_floors", "journal")
    return [connection.execute(f"SELECT t::text FROM skep.{table} t ORDER BY 1").fetchall() for table in tables]
