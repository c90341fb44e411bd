"""Temporary databases for tests: one server per run, one database per process, emptied after each test.

After a test that left
    ├── only some rows in the tables of Skep      the rows are deleted: 2 ms
    └── its own tables or functions, tens of thousands of rows, an open transaction or a broken schema
                                                  the database is created again: 0.2 s
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import LiteralString, Self
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from skep import embedded
from skep.engine.install import install
from skep.engine.sources import HERE

# Test data need not survive a crash of the machine, so nothing waits for the disk.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

EMPTY = (HERE / "empty.sql").read_bytes()
# The number of objects in the database, to find those that a test created or dropped.
COUNT_OBJECTS: LiteralString = """
    SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc), (SELECT count(*) FROM pg_namespace),
           (SELECT count(*) FROM pg_type), (SELECT count(*) FROM pg_trigger)
"""
IS_SMALL: LiteralString = """
    SELECT pg_total_relation_size('skep.messages') + pg_total_relation_size('skep.dead_letters') < 8 * 1024 * 1024
    AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                    AND backend_type = 'client backend' AND xact_start IS NOT NULL)
"""


@contextmanager
def server(data_dir: Path) -> Generator[str]:
    """Return SKEP_TEST_DATABASE_URL, or the URL of an embedded server that all processes of the run share."""
    if given := os.environ.get("SKEP_TEST_DATABASE_URL"):
        yield given
        return
    with embedded.start(data_dir, settings=FAST) as started:
        yield started.url


class TemporaryDatabase:
    """A new database with Skep in it. It is dropped at the end of the block."""

    def __init__(self, server_url: str) -> None:
        self._admin = psycopg.connect(server_url, autocommit=True)
        self._template = f"skep_pytest_{uuid4().hex[:12]}"
        self._name = f"{self._template}_copy"
        self._template_url = _with_database(server_url, self._template)
        self.url = _with_database(server_url, self._name)

    def __enter__(self) -> Self:
        self._create(self._template, "template0")
        install(self._template_url)
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._drop(self._name)
        self._drop(self._template)
        self._admin.close()

    def empty(self) -> None:
        """Remove everything that was added to the database."""
        try:
            if self._has_only_rows():
                self._connection.execute(EMPTY)
                return
        except psycopg.Error:  # the test locked, renamed or dropped something
            pass
        self._connection.close()
        self._drop(self._name)
        self._open()

    def _has_only_rows(self) -> bool:
        same = self._connection.execute(COUNT_OBJECTS).fetchone() == self._objects
        return same and self._connection.execute(IS_SMALL).fetchone() == (True,)

    def _open(self) -> None:
        self._create(self._name, self._template)
        self._connection = psycopg.connect(self.url, autocommit=True, options="-c lock_timeout=1s")
        self._objects = self._connection.execute(COUNT_OBJECTS).fetchone()

    def _create(self, name: str, template: str) -> None:
        names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
        self._admin.execute(sql.SQL("CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template}").format(**names))

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(name=sql.Identifier(name)))


def _with_database(url: str, name: str) -> str:
    """Return the URL for another database. A URL stays a URL, because not every library accepts conninfo strings."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return make_conninfo(url, dbname=name)
    address, mark, parameters = rest.partition("?")
    return f"{scheme}://{address.partition('/')[0]}/{name}{mark}{parameters}"
