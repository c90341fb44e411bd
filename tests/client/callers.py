"""Applications with their own connection, one for each library, with the same methods."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import django
import django.conf
import django.db
import psycopg
import sqlalchemy
from django.db import transaction as django_transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from skep import AsyncSkep, Skep
from tests.client.both import either, play, settle

Context = AbstractAsyncContextManager[Any]


class Caller:
    """An application; `connection` is the object that it passes to Skep."""

    def __init__(
        self, connection: Any, *, transaction: Callable[[], Any], savepoint: Callable[[], Any], execute: Callable
    ) -> None:
        self.connection = connection
        self._transaction, self._savepoint, self._execute = transaction, savepoint, execute

    def transaction(self) -> Context:
        return either(self._transaction())

    def savepoint(self) -> Context:
        return either(self._savepoint())

    async def execute(self, query: str) -> None:
        await settle(self._execute(query))


def _of_psycopg(connection: Any) -> Caller:
    begin = connection.transaction
    return Caller(connection, transaction=begin, savepoint=begin, execute=connection.execute)


def _of_sqlalchemy(connection: Any) -> Caller:
    def execute(query: str) -> Any:
        return connection.execute(sqlalchemy.text(query))

    return Caller(connection, transaction=connection.begin, savepoint=connection.begin_nested, execute=execute)


@asynccontextmanager
async def psycopg_connection(url: str) -> AsyncGenerator[Caller]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield _of_psycopg(connection)


@asynccontextmanager
async def psycopg_async_connection(url: str) -> AsyncGenerator[Caller]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield _of_psycopg(connection)


@asynccontextmanager
async def sqlalchemy_connection(url: str) -> AsyncGenerator[Caller]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with engine.connect() as connection:
        yield _of_sqlalchemy(connection)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_session(url: str) -> AsyncGenerator[Caller]:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with Session(engine) as session:
        yield _of_sqlalchemy(session)
    engine.dispose()


def _async_engine(url: str) -> Any:
    return create_async_engine("postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(url))


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncGenerator[Caller]:
    engine = _async_engine(url)
    async with engine.connect() as connection:
        yield _of_sqlalchemy(connection)
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_async_session(url: str) -> AsyncGenerator[Caller]:
    engine = _async_engine(url)
    async with AsyncSession(engine) as session:
        yield _of_sqlalchemy(session)
    await engine.dispose()


@asynccontextmanager
async def django_connection(url: str) -> AsyncGenerator[Caller]:
    parts = conninfo_to_dict(url)
    database = {"NAME": parts["dbname"], "USER": parts.get("user", ""), "PASSWORD": parts.get("password", "")}
    database |= {"HOST": parts.get("host", ""), "PORT": parts.get("port", "")}
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **database}})
        django.setup()
    django.db.connection.settings_dict.update(database)  # each test module has its own database

    def execute(query: str) -> None:
        with django.db.connection.cursor() as cursor:
            cursor.execute(query)

    atomic = django_transaction.atomic
    try:
        yield Caller(django.db.connection, transaction=atomic, savepoint=atomic, execute=execute)
    finally:
        django.db.connection.close()


Open = Callable[[str], AbstractAsyncContextManager[Caller]]
PLAIN: Mapping[str, Open] = {
    "psycopg": psycopg_connection,
    "SQLAlchemy Connection": sqlalchemy_connection,
    "SQLAlchemy Session": sqlalchemy_session,
    "Django": django_connection,
}
ASYNC: Mapping[str, Open] = {
    "psycopg async": psycopg_async_connection,
    "SQLAlchemy AsyncConnection": sqlalchemy_async_connection,
    "SQLAlchemy AsyncSession": sqlalchemy_async_session,
}


class Shop:
    """An application with a connection, a client of Skep, a queue, and a table of orders."""

    def __init__(self, url: str, mq: Any, caller: Caller, queue: str) -> None:
        self.url, self.mq, self.caller = url, mq, caller
        self.connection = caller.connection
        self.name = queue
        self.queue = mq.queue(queue)

    async def order(self, number: int) -> None:
        """Write an order, and a message about it."""
        await self.caller.execute(f"INSERT INTO orders (shop, number) VALUES ('{self.name}', {number})")
        assert await settle(self.queue.push({"number": number}, connection=self.connection)) is None

    def orders(self) -> list[int]:
        """Return the numbers of the committed orders."""
        with psycopg.connect(self.url) as outside:
            rows = outside.execute("SELECT number FROM orders WHERE shop = %s ORDER BY number", [self.name])
            return [number for (number,) in rows.fetchall()]

    async def told(self) -> list[int]:
        """Return the numbers in the log, in order, read by a new group."""
        batch = await settle(self.queue.pop(group=f"reader {uuid4()}", batch=1000, auto_ack=True))
        assert [message.offset for message in batch] == list(range(len(batch)))
        return [message.payload["number"] for message in batch]


def tell(kind: str, url: str, queue: str, story: Callable[[Shop], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario with one kind of application."""
    with psycopg.connect(url) as outside:
        outside.execute("CREATE TABLE IF NOT EXISTS orders (shop text, number integer)")

    async def with_a_shop() -> None:
        opened = ASYNC.get(kind) or PLAIN[kind]
        async with opened(url) as caller, either(AsyncSkep(url) if kind in ASYNC else Skep(url)) as mq:
            await story(Shop(url, mq, caller, queue))

    play(with_a_shop(), with_loop=kind in ASYNC)
