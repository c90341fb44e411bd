"""Fixtures: one database per module, which the tests of the module share one after the other."""

from collections.abc import Callable, Generator
from contextlib import ExitStack

import psycopg
import pytest

FORGET = """
    DO $$
    BEGIN
        EXECUTE (SELECT 'TRUNCATE ' || string_agg(oid::regclass::text, ', ') || ' RESTART IDENTITY' FROM pg_class
                 WHERE relnamespace = 'skep'::regnamespace AND relkind = 'r'
                   AND relname NOT IN ('migrations', 'schema_info', 'settings', 'journal_floor', 'retention_visits'));
        DELETE FROM skep.settings;
        INSERT INTO skep.settings DEFAULT VALUES;
        UPDATE skep.journal_floor SET xid = DEFAULT;
        UPDATE skep.retention_visits SET visited_to = DEFAULT, visited_at = DEFAULT, snapshot = DEFAULT;
    END $$
"""


@pytest.fixture
def mq(module_database_url: str) -> Generator[psycopg.Connection]:
    """An autocommit connection to the module's database; everything in it is deleted after the test."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection
        connection.execute(FORGET)


@pytest.fixture
def connect_module(module_database_url: str) -> Generator[Callable[[], psycopg.Connection]]:
    """Open more autocommit connections to the database of `mq`."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(psycopg.connect(module_database_url, autocommit=True))
