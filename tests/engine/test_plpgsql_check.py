"""Static checks of every function: plpgsql_check reads PL/pgSQL, PostgreSQL itself the bodies in SQL."""

import os
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from skep.engine.install import install
from tests.conftest import FAST, directory

# A trigger function is checked with the row of its table.
CHECK = """
    SELECT p.oid::regprocedure::text, c.level, c.message, c.lineno
    FROM pg_proc p
    LEFT JOIN (SELECT DISTINCT tgfoid, tgrelid FROM pg_trigger WHERE NOT tgisinternal) g ON g.tgfoid = p.oid
    CROSS JOIN LATERAL plpgsql_check_function_tb(
        p.oid, coalesce(g.tgrelid, 0), fatal_errors => false) c
    WHERE p.pronamespace = 'skep'::regnamespace
      AND p.prolang = (SELECT oid FROM pg_language WHERE lanname = 'plpgsql')
      AND NOT (p.prorettype = 'trigger'::regtype AND g.tgrelid IS NULL)
    ORDER BY 1, 4
"""
PLPGSQL = """
    SELECT count(*) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    WHERE p.pronamespace = 'skep'::regnamespace AND l.lanname = 'plpgsql'
"""
SQL_BODIES = """
    SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    WHERE p.pronamespace = 'skep'::regnamespace AND l.lanname = 'sql'
"""
KNOWN_MESSAGES = (
    "target type is different type than source type",  # a number type stored in another one, which needs no cast
    "control reached end of function without RETURN",  # it ends with _refuse(), which raises
    "composite OUT variable",  # a row beside other columns
    'name of parameter "offset" is reserved keyword',  # it is quoted wherever it is used
)
KNOWN_DYNAMIC = "_write_options"  # its statement is made of the columns that the caller names


def checker() -> Path:
    """Return the programs of a PostgreSQL that has plpgsql_check; skip without one, or fail if SKEP_TEST_ALL=1."""
    for control in sorted(Path("/usr/share/postgresql").glob("*/extension/plpgsql_check.control"), reverse=True):
        bin_dir = Path("/usr/lib/postgresql") / control.parts[-3] / "bin"
        if (bin_dir / "postgres").exists():
            return bin_dir
    missing = "no plpgsql_check here; on Debian: apt-get install postgresql-15-plpgsql-check"
    if os.environ.get("SKEP_TEST_ALL") == "1":
        pytest.fail(f"{missing} (SKEP_TEST_ALL=1)")
    pytest.skip(missing)


@pytest.fixture(scope="module")
def checked() -> Generator[psycopg.Connection]:
    """A database with Skep and the checker."""
    bin_dir = checker()
    with directory() as data_dir, embedded.start(data_dir, settings=FAST, bin_dir=bin_dir) as server:
        install(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION plpgsql_check")
            yield connection


def findings(connection: psycopg.Connection) -> list[tuple[str, str, str, int]]:
    """Return errors, and warnings that are not known: (function, level, message, line)."""
    return [
        (name, level, message, line)
        for name, level, message, line in connection.execute(CHECK)
        if level == "error" or not (message.startswith(KNOWN_MESSAGES) or KNOWN_DYNAMIC in name)
    ]


def test_plpgsql_check_finds_nothing(checked: psycopg.Connection):
    assert checked.execute(PLPGSQL).fetchall()[0][0] > 100
    assert findings(checked) == []


def test_plpgsql_check_finds_a_broken_function(checked: psycopg.Connection):
    """This shows that the check above can fail."""
    body = "BEGIN UPDATE skep.queues SET nothing = 1; END"
    checked.execute(f"CREATE FUNCTION skep._broken() RETURNS void LANGUAGE plpgsql AS $$ {body} $$".encode())
    try:
        broken = [(name, level) for name, level, *_ in findings(checked)]
    finally:
        checked.execute("DROP FUNCTION skep._broken()")
    assert broken == [("skep._broken()", "error")]


def test_every_sql_function_is_accepted_with_its_body(checked: psycopg.Connection):
    """An install turns this check off, because functions are created before the ones that they call."""
    checked.execute("SET check_function_bodies = on")
    bodies = checked.execute(SQL_BODIES).fetchall()
    assert len(bodies) > 100
    refused: dict[str, str] = {}
    for name, definition in bodies:
        try:
            checked.execute(definition.encode())
        except psycopg.Error as error:
            refused[name] = str(error)
    assert refused == {}
