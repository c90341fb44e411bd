"""The public functions as short calls, so that a test reads like the work of producers and consumers."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

Row = Any  # a named tuple with the columns of the function


def call(connection: psycopg.Connection, function: str, **arguments: Any) -> list[Row]:
    """Call a function of schema skep by name, with named arguments."""
    pairs = [sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in arguments]
    query = sql.SQL("SELECT * FROM skep.{}({})").format(sql.Identifier(function), sql.SQL(", ").join(pairs))
    return connection.cursor(row_factory=namedtuple_row).execute(query, arguments).fetchall()


def push(
    connection: psycopg.Connection, queue: str, *payloads: Any, partition: str = "Default", **arrays: Any
) -> list[Row]:
    """Push to one partition in one call; the results are in the order of the payloads."""
    return push_to(connection, [(queue, partition, payload) for payload in payloads], **arrays)


def push_to(connection: psycopg.Connection, items: Iterable[tuple[str, str, Any]], **arrays: Any) -> list[Row]:
    """Push (queue, partition, payload) items in one call; the results are in the order of the items."""
    queues, partitions, payloads = zip(*items, strict=True)
    bodies = [Jsonb(payload) for payload in payloads]
    results = call(connection, "push_many", queues=list(queues), partitions=list(partitions), payloads=bodies, **arrays)
    return sorted(results, key=lambda result: result.ord)


def pop(
    connection: psycopg.Connection, queue: str | None, group: str = "g", *, batch: int = 100, **options: Any
) -> list[Row]:
    """Pop as the client does: with autocommit if the transaction ends with the call."""
    idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    options = {"autocommit": connection.autocommit and idle, **options}
    return call(connection, "pop", queue=queue, group_name=group, batch=batch, **options)


def ack(connection: psycopg.Connection, deliveries: list[Row]) -> None:
    for lease in {delivery.lease for delivery in deliveries}:
        call(connection, "ack", lease=lease)


def take(connection: psycopg.Connection, queue: str | None, group: str = "g", **options: Any) -> list[Any]:
    """Pop once, acknowledge, and return the payloads."""
    deliveries = pop(connection, queue, group, **options)
    ack(connection, deliveries)
    return [delivery.payload for delivery in deliveries]


def drain(connection: psycopg.Connection, queue: str | None, group: str = "g", **options: Any) -> list[Row]:
    """Pop and acknowledge until a pop returns nothing; return the deliveries in order."""
    drained: list[Row] = []
    while deliveries := pop(connection, queue, group, **options):
        ack(connection, deliveries)
        drained += deliveries
    return drained


def append_due(connection: psycopg.Connection) -> int:
    """Append delayed messages that are due, as upkeep does; return how many."""
    return call(connection, "append_delayed")[0].messages


def configure(connection: psycopg.Connection, queue: str, **options: Any) -> None:
    call(connection, "configure_queue", queue=queue, options=Jsonb(options))


def lag(connection: psycopg.Connection, group: str = "g", queue: str | None = None) -> dict[str, int]:
    """Return the lag of the group, by partition."""
    return {row.partition: row.lag for row in call(connection, "lag", group_name=group, queue=queue)}


def broken(connection: psycopg.Connection) -> dict[str, int]:
    """Return the invariants that do not hold, with the number of violations."""
    return {row.invariant: row.broken for row in call(connection, "check_consistency") if row.broken}


def pass_time(connection: psycopg.Connection, seconds: float) -> None:
    """Move every stored time back, as if this many seconds had passed; negative: as if the clock had been set back."""
    for table, column, kind in connection.execute(
        "SELECT table_name, column_name, udt_name"
        " FROM information_schema.columns NATURAL JOIN information_schema.tables"
        " WHERE table_schema = 'skep' AND table_type = 'BASE TABLE' AND udt_name IN ('timestamptz', '_timestamptz')"
        " AND table_name NOT IN ('migrations', 'schema_info')"
        " AND column_name <> 'server_started'"  # the server is still the same
    ).fetchall():
        names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
        query = "UPDATE skep.{table} SET {column} = {column} - make_interval(secs => %s)"
        if kind == "_timestamptz":
            query = (
                "UPDATE skep.{table} SET {column} = ARRAY(SELECT at - make_interval(secs => %s)"
                " FROM unnest({column}) WITH ORDINALITY AS t (at, n) ORDER BY n) WHERE {column} IS NOT NULL"
            )
        connection.execute(sql.SQL(query).format(**names), [seconds])


@contextmanager
def refused(sqlstate: str, *words: str) -> Generator[None]:
    """Expect an error with this SQLSTATE whose message contains these words."""
    with pytest.raises(psycopg.Error) as caught:
        yield
    message = caught.value.diag.message_primary or ""
    assert caught.value.sqlstate == sqlstate, caught.value
    assert [word for word in words if word not in message] == [], message
