"""Fixtures of tests that call a server in this process: `pytest_plugins = ["tests.server.fixtures"]`."""

from collections.abc import Callable, Generator
from contextlib import ExitStack

import psycopg
import pytest

from tests.engine.conftest import FORGET
from tests.server.api import Api, running


@pytest.fixture(scope="module")
def running_api(module_database_url: str) -> Generator[Api]:
    with running(module_database_url) as api:
        yield api


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    """Look behind the server. Everything is forgotten after the test."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection
        connection.execute(FORGET)


@pytest.fixture
def api(running_api: Api, db: psycopg.Connection) -> Api:
    return running_api


@pytest.fixture
def serve(module_database_url: str, db: psycopg.Connection) -> Generator[Callable[..., Api]]:
    """Serve the database of `api` with other settings."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(running(module_database_url, **settings))
