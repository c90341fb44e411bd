"""One PostgreSQL for the test run, one template database with Skep, and databases that are copied from it."""

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from skep import embedded
from skep.engine.install import install

# No test needs its data after a crash of the machine, so nothing waits for the disk.
FAST = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_preload_libraries": "",
    "max_connections": "200",
}
ROOM = 8 << 30  # bytes, for the servers of several test processes
# Files of few tests that take long. They run first, or the last of them would keep one process busy while the others
# have nothing left to do.
LONG = (
    "tests/faults/test_suite.py",
    "tests/engine/test_versions.py",
    "tests/isolation/test_owner.py",
    "tests/engine/test_model.py",
    "tests/isolation/test_retention.py",
    "tests/engine/test_buffers.py",
    "tests/isolation/test_random_load.py",
)
_numbers = itertools.count(1)
# With PYTHONUNBUFFERED a child process that forgets to flush the output a test waits for would pass.
os.environ.pop("PYTHONUNBUFFERED", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> tuple[int, int]:
        """Shuffle the other files, so that two files of Spark rarely run at once."""
        file = item.nodeid.partition("::")[0]
        return (LONG.index(file), 0) if file in LONG else (len(LONG), crc32(file.encode()))

    items.sort(key=order)  # stable: keeps the order within a file


@pytest.fixture
def data_dir() -> Generator[Path]:
    """A directory for an embedded server. Started by root, it runs as another user, who cannot reach tmp_path."""
    with directory() as path:
        yield path


@pytest.fixture(scope="session")
def postgres_url() -> Generator[str]:
    """The URL of the server of this test run, as its superuser."""
    if given := os.environ.get("SKEP_TEST_DATABASE_URL"):
        yield given
        return
    with directory() as path, embedded.start(path, settings=FAST) as server:
        yield server.url


@pytest.fixture(scope="session")
def template(postgres_url: str) -> Generator[str]:
    """The name of a database with Skep. No test connects to it, because then it could not be copied."""
    with _database(postgres_url) as (name, url):
        install(url)
        yield name


@pytest.fixture
def new_database(postgres_url: str) -> Generator[Callable[..., str]]:
    """Create databases, from a template if one is named; all are dropped after the test."""
    with ExitStack() as stack:

        def create(template: str = "template0") -> str:
            _, url = stack.enter_context(_database(postgres_url, template))
            return url

        yield create


@pytest.fixture
def database_url(new_database: Callable[..., str], template: str) -> str:
    """A database with Skep for this test alone."""
    return new_database(template)


@pytest.fixture
def empty_database_url(new_database: Callable[..., str]) -> str:
    """A database without Skep for this test alone."""
    return new_database()


@pytest.fixture(scope="module")
def module_database_url(postgres_url: str, template: str) -> Generator[str]:
    with _database(postgres_url, template) as (_, url):
        yield url


@pytest.fixture
def conn(module_database_url: str) -> Generator[psycopg.Connection]:
    """A connection in a transaction that is rolled back after the test."""
    with psycopg.connect(module_database_url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def connect(database_url: str) -> Generator[Callable[..., psycopg.Connection]]:
    """Open autocommit connections to this test's own database; all are closed after the test."""
    with ExitStack() as stack:

        def open_one(**options: Any) -> psycopg.Connection:
            return stack.enter_context(psycopg.connect(database_url, **{"autocommit": True, **options}))

        yield open_one


def _memory() -> Path | None:
    """Return a directory in memory, if there is room: to create a database takes 25 ms there, and 350 ms on a disk."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and shutil.disk_usage(shared).free > ROOM else None


@contextmanager
def directory() -> Generator[Path]:
    """Yield a new directory, in memory if there is room; it is deleted afterwards."""
    path = Path(tempfile.mkdtemp(prefix="skep-test-", dir=_memory()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def _database(postgres_url: str, template: str = "template0") -> Generator[tuple[str, str]]:
    name = f"skep_test_{os.getpid()}_{next(_numbers)}"
    names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE {template}").format(**names))
        try:
            yield name, make_conninfo(postgres_url, dbname=name)
        finally:
            _disconnect(admin, name)
            admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))


def _disconnect(admin: psycopg.Connection, name: str) -> None:
    """End all sessions of a database; DROP DATABASE would sleep 100 ms if one were still there."""
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
    deadline = time.monotonic() + 0.1
    while admin.execute(query, [name]).fetchall() != [(0,)] and time.monotonic() < deadline:
        time.sleep(0.001)
