"""Every public function with absurd arguments: each call raises a clear error, and nothing is damaged."""

import json
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.engine.verbs import broken, drain, lag, pop, push, push_to

ROUNDS = 25
CALLED = """
    SELECT p.proname::text, p.proargnames[:p.pronargs]::text[],
           ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY AS x (t, n) ORDER BY n),
           p.pronargs - p.pronargdefaults
    FROM pg_proc p
    WHERE p.pronamespace = 'skep'::regnamespace AND p.prokind = 'f'
      AND has_function_privilege('skep_admin', p.oid, 'EXECUTE') AND p.proname <> ALL (%s)
    ORDER BY p.proname, p.oid
"""
# Raises the error that it is asked for.
LEFT_OUT = ["_refuse"]
# SK is Skep's own; PostgreSQL's 22 is for values that do not fit their type, 23 names the column of a table whose
# constraint fails (only functions for pipelines).
CLEAR = ("SK", "22", "23")
TEXTS = [
    "",
    "q",
    "g",
    "a",
    "Default",
    "__QUEUE_MODE__",
    "x" * 300,
    "🐝",
    "'; DROP SCHEMA skep; --",
    "%s\n\t\\",
    "../..",
    "now",
    "-1",
    "1e999",
    "{}",
]
JSONS: list[Any] = [
    *(None, 1, -1.5, "x", [], {}, [1], [[]], {"queue": "q"}, [{"queue": 7}], [{"push": {}}], [{"ack": {"lease": "x"}}]),
    *([{"queue": "q", "payload": {"n": 1}}], {"a" * 300: {"b": [None]}}, {"retention_seconds": -1}),
]
VALUES: dict[str, Callable[[random.Random, list[Any]], Any]] = {
    "text": lambda r, _: r.choice(TEXTS),
    "integer": lambda r, _: r.choice([0, 1, -1, 7, 2**31 - 1, -(2**31)]),
    "bigint": lambda r, _: r.choice([0, 1, 2, -1, 2**63 - 1, -(2**63)]),
    "double precision": lambda r, _: r.choice([0, 1, -1, 1e-9, 1e308, float("nan"), float("inf")]),
    "boolean": lambda r, _: r.random() < 0.5,
    "jsonb": lambda r, _: json.dumps(r.choice(JSONS)),
    "uuid": lambda r, known: r.choice([*known, str(UUID(int=r.getrandbits(128)))]),
    "timestamp with time zone": lambda r, _: r.choice(["now", "epoch", "infinity", "-infinity", "9999-12-31"]),
    "date": lambda r, _: r.choice(["now", "epoch", "infinity"]),
    "interval": lambda r, _: r.choice(["0", "-1 day", "1 us", "1000 years"]),
    "bytea": lambda r, _: r.choice([b"", b"\x00\xff", b"x" * 1000]),
    "pg_snapshot": lambda r, _: r.choice(["1:1:", "1:100000000:5,7", "9:20:10"]),
    "xid8": lambda r, _: r.choice(["0", "3", "99999999999"]),
}


def argument(kind: str, rand: random.Random, known: list[Any]) -> Any:
    if rand.random() < 0.15:
        return None
    if kind.endswith("[]"):
        return [argument(kind[:-2], rand, known) for _ in range(rand.choice([0, 1, 1, 2, 3]))]
    return VALUES[kind](rand, known)


@pytest.fixture
def busy(connect: Callable[..., psycopg.Connection]) -> tuple[psycopg.Connection, list[Any]]:
    """A database with some of everything, and the real leases and ids."""
    connection = connect()
    push_to(connection, [("q", partition, n) for partition in ("a", "b", "Default") for n in range(4)])
    leased = pop(connection, "q", batch=2) + pop(connection, "q", "h", batch=2)
    connection.execute("SELECT skep.dead_letter(%s, 'no')", [pop(connection, "q", "i", batch=1)[0].lease])
    return connection, [str(each) for row in leased for each in (row.lease, row.id)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_functions_refuse_absurd_arguments(busy: tuple[psycopg.Connection, list[Any]], seed: int):
    connection, known = busy
    rand = random.Random(seed)
    connection.execute("SET statement_timeout = '10s'")
    functions = connection.execute(CALLED, [LEFT_OUT]).fetchall()
    assert len(functions) > 150
    unclear: set[str] = set()
    for name, names, kinds, required in functions:
        for _ in range(ROUNDS):
            given = rand.randint(required, len(kinds))
            marks = [f'"{names[n]}" => %s::{kinds[n]}' for n in range(given)]
            values = [argument(kinds[n], rand, known) for n in range(given)]
            try:
                with connection.transaction(force_rollback=rand.random() < 0.5):
                    connection.execute(f"SELECT count(*) FROM skep.{name}({', '.join(marks)})", values)  # pyright: ignore[reportArgumentType]
            except psycopg.Error as error:
                if isinstance(error, psycopg.DataError) and error.sqlstate is None:
                    continue  # psycopg cannot send it, such as a list of integers and floats
                if not (error.sqlstate or "none").startswith(CLEAR):
                    unclear.add(f"{name}{tuple(values)}: {error.sqlstate} {error.diag.message_primary}")
        assert not connection.closed
    assert sorted(unclear) == []
    assert broken(connection) == {}
    push(connection, "fresh", 1, 2, 3)
    assert [row.payload for row in drain(connection, "fresh", "new", subscription_mode="all")] == [1, 2, 3]
    assert set(lag(connection, "new", "fresh").values()) == {0}
