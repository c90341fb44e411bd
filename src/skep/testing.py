"""Throw-away databases for tests: one server per run, one database per process, emptied after each test.

after a test
    ├── only rows of Skep, and not too many       deleted: 2 ms
    └── tables or functions of its own, rows by the ten thousand, a transaction still open, a broken schema
                                                  the database is made anew: 0.2 s
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

# Nothing in a test survives a crash of the machine, so nothing waits for the disk.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

EMPTY = (HERE / "empty.sql").read_bytes()
# What is in the database besides rows.
LOOK: LiteralString = """
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
    """Give the URL of SKEP_TEST_DATABASE_URL, or of an embedded server that all processes of the run share."""
    if given := os.environ.get("SKEP_TEST_DATABASE_URL"):
        yield given
        return
    with embedded.start(data_dir, settings=FAST) as started:
        yield started.url


class Database:
    """A database of its own on a server, with Skep in it; it is gone at the end."""

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
        """Make it as new."""
        try:
            if self._is_easy():
                self._connection.execute(EMPTY)
                return
        except psycopg.Error:  # the test has locked, renamed or dropped something
            pass
        self._connection.close()
        self._drop(self._name)
        self._open()

    def _is_easy(self) -> bool:
        same = self._connection.execute(LOOK).fetchone() == self._as_new
        return same and self._connection.execute(IS_SMALL).fetchone() == (True,)

    def _open(self) -> None:
        self._create(self._name, self._template)
        self._connection = psycopg.connect(self.url, autocommit=True, options="-c lock_timeout=1s")
        self._as_new = self._connection.execute(LOOK).fetchone()

    def _create(self, name: str, template: str) -> None:
        names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
        self._admin.execute(sql.SQL("CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template}").format(**names))

    def _drop(self, name: str) -> None:
        self._admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(name=sql.Identifier(name)))


def _with_database(url: str, name: str) -> str:
    """Return the same for another database; a URL stays one, for not everybody reads conninfo strings."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return make_conninfo(url, dbname=name)
    address, mark, parameters = rest.partition("?")
    return f"{scheme}://{address.partition('/')[0]}/{name}{mark}{parameters}"
