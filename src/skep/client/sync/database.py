# Generated from src/skep/client/aio/database.py by `make format`. Change that file.
"""The connection pool. It survives restarts of the database, and its errors are Skep's errors."""

import select
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import Connection
from psycopg.rows import args_row, scalar_row
from psycopg_pool import ConnectionPool, PoolClosed

from skep import embedded
from skep.client.check import check_database
from skep.client.sync import runtime
from skep.config import Config
from skep.embedded import EmbeddedPostgres
from skep.engine.install import install
from skep.errors import SkepError, explained

T = TypeVar("T")

FRESH = 1.0  # seconds after its last use during which a connection is not checked again


class Pooled(Connection[Any]):
    """A connection of the pool, with the time of its last use."""

    used_at = 0.0


class Database:
    """The connections to one database, opened by the first call."""

    def __init__(self, url: str | None, *, data_dir: Path | None, pool_size: int, timeout: float) -> None:
        config = Config.load_client(url, data_dir)
        self._url = config.database_url
        self._data_dir = config.data_dir
        self._pool_size = pool_size
        self._timeout = timeout
        self._opening = runtime.Lock()
        self._pool: ConnectionPool[Pooled] | None = None
        self._server: EmbeddedPostgres | None = None
        self._closed = False
        self.direct = True  # no pooler in between: sessions are not shared, LISTEN works

    def call(
        self, query: LiteralString, arguments: Mapping[str, Any], row: Callable[..., T], *, binary: bool = False
    ) -> list[T]:
        """Run one statement in its own transaction, and return its rows, each made by `row`."""
        with self._connection() as connection:
            cursor = connection.cursor(row_factory=args_row(row), binary=binary)
            return (cursor.execute(query, arguments)).fetchall()

    def value(self, query: LiteralString, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Run one statement and return its single value."""
        with self._connection() as connection:
            cursor = connection.cursor(row_factory=scalar_row)
            return (cursor.execute(query, arguments)).fetchone()

    @contextmanager
    def _connection(self) -> Generator[Pooled]:
        with runtime.interruptible():
            pool = self._pool or self.open()
            with explained():
                connection = self._live_connection(pool)
                try:
                    yield connection
                finally:
                    connection.used_at = monotonic()
                    pool.putconn(connection)

    def _live_connection(self, pool: ConnectionPool[Pooled]) -> Pooled:
        """Get a live connection from the pool. Connections that were idle during a restart of the database are dead."""
        while True:
            try:
                connection = pool.getconn()
            except PoolClosed:
                raise self._is_closed() from None
            fresh = monotonic() - connection.used_at < FRESH and not _has_input(connection)
            if fresh or _is_alive(connection):
                return connection
            connection.close()
            pool.putconn(connection)
            pool.drain()

    def open(self) -> ConnectionPool[Pooled]:
        """Check the database with one connection, so that errors are clear, then open the pool."""
        with self._opening:
            if self._closed:
                raise self._is_closed()
            if self._pool is None:
                url = self._locate()
                self.direct = runtime.in_thread(lambda: check_database(url))
                self._pool = ConnectionPool(
                    url,
                    connection_class=Pooled,
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
                self._pool.open()
            return self._pool

    def _is_closed(self) -> SkepError:
        return SkepError("this client is closed", hint="Create a new one.")

    def _locate(self) -> str:
        """Return the URL. Without one, start the embedded server and install Skep in it."""
        if self._url is None:
            server = runtime.in_thread(lambda: embedded.start(self._data_dir))
            self._server = server
            self._url = server.url
            runtime.in_thread(lambda: install(server.url, data_dir=server.data_dir))
        return self._url

    def connect(self) -> Connection[Any]:
        """Open a connection outside the pool. The caller closes it."""
        with explained():
            return Connection.connect(self._locate(), autocommit=True, prepare_threshold=None, application_name="skep")

    def pool_stats(self) -> dict[str, int]:
        """Return the number of connections, of idle and of active ones, and of callers that wait for one."""
        stats = {} if self._pool is None else self._pool.get_stats()
        size, idle = stats.get("pool_size", 0), stats.get("pool_available", 0)
        return {"size": size, "idle": idle, "active": size - idle, "waiting": stats.get("requests_waiting", 0)}

    def close(self) -> None:
        with self._opening:
            self._closed = True
            if self._pool is not None:
                self._pool.close()
                self._pool = None
            if self._server is not None:
                runtime.in_thread(self._server.stop)
                self._server = None


def _has_input(connection: Connection[Any]) -> bool:
    """Return whether unrequested input has arrived, such as the last message of a server that shuts down."""
    poll = select.poll()  # select() cannot handle descriptors above 1023
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_alive(connection: Connection[Any]) -> bool:
    try:
        connection.execute("")
    except psycopg.OperationalError:
        return False
    return True
