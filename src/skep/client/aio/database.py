"""The connections: a pool that outlives restarts of the database, and every error as Skep's own."""

import select
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import args_row, scalar_row
from psycopg_pool import AsyncConnectionPool

from skep import embedded
from skep.client.aio import runtime
from skep.client.probe import probe
from skep.config import check_database_url
from skep.embedded import EmbeddedPostgres
from skep.engine.install import install
from skep.errors import SkepError, explained

T = TypeVar("T")


class AsyncDatabase:
    """One database; opened by the first call."""

    def __init__(self, url: str | None, *, data_dir: Path | None, pool_size: int, timeout: float) -> None:
        self._url = check_database_url(url) if url is not None else None
        self._data_dir = data_dir
        self._pool_size = pool_size
        self._timeout = timeout
        self._opening = runtime.Lock()
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None
        self._server: EmbeddedPostgres | None = None
        self._closed = False
        self.direct = True  # nothing stands between us and PostgreSQL: sessions are ours, LISTEN works

    async def call(self, query: LiteralString, arguments: Mapping[str, Any], row: Callable[..., T]) -> list[T]:
        """Run one statement in a transaction of its own, and make each row of the answer with `row`."""
        async with self._connection() as connection:
            cursor = connection.cursor(row_factory=args_row(row))
            return await (await cursor.execute(query, arguments)).fetchall()

    async def value(self, query: LiteralString, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one statement and return the one value it answers."""
        async with self._connection() as connection:
            cursor = connection.cursor(row_factory=scalar_row)
            return await (await cursor.execute(query, arguments)).fetchone()

    @asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection[Any]]:
        pool = self._pool or await self.open()
        with explained():
            connection = await self._take(pool)
            try:
                yield connection
            finally:
                await pool.putconn(connection)

    async def _take(self, pool: AsyncConnectionPool[AsyncConnection[Any]]) -> AsyncConnection[Any]:
        """Skip what a restart of the database left in the pool: idle connections on which the server has spoken."""
        while True:
            connection = await pool.getconn()
            if not select.select([connection.fileno()], [], [], 0)[0] or await _answers(connection):
                return connection
            await connection.close()
            await pool.putconn(connection)
            await pool.drain()

    async def open(self) -> AsyncConnectionPool[AsyncConnection[Any]]:
        """Connect once to learn what is there, so that an error says why, then fill the pool."""
        async with self._opening:
            if self._closed:
                raise SkepError("this client is closed", hint="Make a new one.")
            if self._pool is None:
                url = await self._locate()
                self.direct = await runtime.in_thread(lambda: probe(url))
                self._pool = AsyncConnectionPool(
                    url,
                    min_size=1,
                    max_size=self._pool_size,
                    timeout=self._timeout,
                    reconnect_timeout=10,
                    kwargs={
                        "autocommit": True,
                        "prepare_threshold": 5 if self.direct else None,
                        "application_name": "skep",
                    },
                    open=False,
                )
                await self._pool.open()
            return self._pool

    async def _locate(self) -> str:
        """Return the URL; without one, start the embedded server and install Skep in it."""
        if self._url is None:
            server = await runtime.in_thread(lambda: embedded.start(self._data_dir))
            self._server = server
            self._url = server.url
            await runtime.in_thread(lambda: install(server.url))
        return self._url

    async def connect(self) -> AsyncConnection[Any]:
        """Open a connection beside the pool, for one who keeps it."""
        with explained():
            return await AsyncConnection.connect(
                await self._locate(), autocommit=True, prepare_threshold=None, application_name="skep"
            )

    async def close(self) -> None:
        async with self._opening:
            self._closed = True
            if self._pool is not None:
                await self._pool.close()
                self._pool = None
            if self._server is not None:
                await runtime.in_thread(self._server.stop)
                self._server = None


async def _answers(connection: AsyncConnection[Any]) -> bool:
    try:
        await connection.execute("")
    except psycopg.OperationalError:
        return False
    return True
