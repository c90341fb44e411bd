"""Both clients, and the database behind them."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from skep import AsyncSkep
from tests.client.faces import Face, make
from tests.engine.conftest import FORGET


@pytest.fixture(params=["async", "sync"])
def face(request: pytest.FixtureRequest) -> Face:
    """The client that the test uses."""
    return request.param


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    """A connection to the database of the clients, which is emptied after the test."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection
        connection.execute(FORGET)


@pytest.fixture
async def clients(
    face: Face, db: psycopg.Connection, module_database_url: str
) -> AsyncGenerator[Callable[..., AsyncSkep]]:
    """Create clients, which are closed after the test."""
    async with AsyncExitStack() as stack:

        def one(url: str = module_database_url, **options: Any) -> AsyncSkep:
            client = make(face, url, **options)
            stack.push_async_callback(client.close)
            return client

        yield one


@pytest.fixture
def mq(clients: Callable[..., AsyncSkep]) -> AsyncSkep:
    """A client that polls often, so that tests are fast."""
    return clients(poll_interval=0.05)


@pytest.fixture
def user_url(db: psycopg.Connection, module_database_url: str) -> Generator[Callable[..., str]]:
    """Return the URL of a user with these roles and no other rights."""
    users: list[sql.Identifier] = []

    def make_user(*roles: str) -> str:
        name = f"skep_test_user_{len(users)}_{db.info.backend_pid}"
        users.append(sql.Identifier(name))
        db.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(users[-1]))
        for role in roles:
            db.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), users[-1]))
        return make_conninfo(module_database_url, user=name, password="secret")

    yield make_user
    for user in users:
        db.execute(sql.SQL("DROP ROLE {}").format(user))


@pytest.fixture
def stranger(db: psycopg.Connection, user_url: Callable[..., str]) -> Generator[str]:
    """A user with USAGE on the schema and no other rights."""
    url = user_url()
    user = sql.Identifier(str(conninfo_to_dict(url)["user"]))
    db.execute(sql.SQL("GRANT USAGE ON SCHEMA skep TO {}").format(user))
    yield url
    db.execute(sql.SQL("REVOKE USAGE ON SCHEMA skep FROM {}").format(user))
