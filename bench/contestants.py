"""Skep and its peers behind one interface: install, publish and work, as their documentation recommends.

All of them decode the payload before they call the handler, use durable tables, and publish on one connection.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import asyncpg
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, Driver, PsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from procrastinate import App, PsycopgConnector
from psycopg_pool import AsyncConnectionPool

from skep import AsyncSkep
from skep.engine.install import install

QUEUE = "jobs"
GROUP = "bench"
SKEP_BATCH = 100
PGQUEUER_BATCH = 200  # larger batches are not faster, on either driver
PROCRASTINATE_CONCURRENCY = 4  # its worker fetches one job at a time, and more of them only wait for each other

Payload = dict[str, Any]
Handle = Callable[[Payload], None]


@dataclass(frozen=True, slots=True)
class Publisher:
    one: Callable[[Payload], Awaitable[object]]
    many: Callable[[list[Payload]], Awaitable[object]]


class Contestant(Protocol):
    """A library. It is sent to the process of its worker, so it has no open connections."""

    @property
    def name(self) -> str: ...
    @property
    def unfinished(self) -> str:
        """SQL that counts the unfinished jobs."""
        ...

    async def prepare(self, url: str) -> None:
        """Install the schema in an empty database."""
        ...

    def publisher(self, url: str) -> AbstractAsyncContextManager[Publisher]: ...
    async def work(self, url: str, handle: Handle) -> None:
        """Run the library's own worker until the process is killed."""
        ...


class Skep:
    name = f"Skep {version('skep')}"
    # A group that has not popped yet has no lag; all messages are unfinished.
    unfinished = f"""
        SELECT coalesce((SELECT sum(lag) FROM skep.lag('{GROUP}', '{QUEUE}')),
                        (SELECT messages FROM skep.queue_status('{QUEUE}')))
    """

    async def prepare(self, url: str) -> None:
        install(url)

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Publisher]:
        async with AsyncSkep(url) as mq:
            queue = mq.queue(QUEUE)
            yield Publisher(queue.push, queue.push_many)

    async def work(self, url: str, handle: Handle) -> None:
        async def handler(batch: Any) -> None:
            for message in batch:
                handle(message.payload)

        async with AsyncSkep(url) as mq:
            await mq.consumer(QUEUE, group=GROUP, batch=SKEP_BATCH, per="batch")(handler).run()


@asynccontextmanager
async def on_asyncpg(url: str) -> AsyncIterator[Driver]:
    connection = await asyncpg.connect(url)
    try:
        yield AsyncpgDriver(connection)
    finally:
        await connection.close()


@asynccontextmanager
async def on_psycopg(url: str) -> AsyncIterator[Driver]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield PsycopgDriver(connection)


@dataclass(frozen=True)
class PgQueuerOn:
    """PgQueuer on one of two drivers: asyncpg, with which its documentation starts, and psycopg, as the others use.

    asyncpg is faster. On psycopg a worker waits for NOTIFY on the connection that its queries need, so that they may
    wait for up to a second.
    """

    driver: str
    connect: Callable[[str], AbstractAsyncContextManager[Driver]]
    unfinished: str = "SELECT count(*) FROM pgqueuer"  # finished jobs leave the table

    @property
    def name(self) -> str:
        return f"PgQueuer {version('pgqueuer')}, {self.driver}"

    async def prepare(self, url: str) -> None:
        async with self.connect(url) as driver:
            queries = Queries(driver)
            await queries.install()  # "durable" is its default: all tables are logged
            await queries.optimize_autovacuum()  # as its documentation recommends for production (`pgq autovac`)

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Publisher]:
        async with self.connect(url) as driver:
            queries = Queries(driver)

            async def one(payload: Payload) -> None:
                await queries.enqueue(QUEUE, json.dumps(payload).encode())

            async def many(payloads: list[Payload]) -> None:
                size = len(payloads)
                await queries.enqueue(
                    [QUEUE] * size, [json.dumps(payload).encode() for payload in payloads], [0] * size
                )

            yield Publisher(one, many)

    async def work(self, url: str, handle: Handle) -> None:
        async with self.connect(url) as driver:
            worker = PgQueuer(driver)

            @worker.entrypoint(QUEUE)
            async def handler(job: Job) -> None:
                handle(json.loads(job.payload or b"{}"))

            # No limit on concurrency: the check of a limit would be part of every dequeue.
            await worker.run(batch_size=PGQUEUER_BATCH)


class Procrastinate:
    name = f"Procrastinate {version('procrastinate')}"
    unfinished = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    async def prepare(self, url: str) -> None:
        async with self._app(url).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def publisher(self, url: str) -> AsyncIterator[Publisher]:
        # Its pool checks the connection and opens a transaction at every call. A connection of the caller, which it
        # accepts for jobs that belong to a transaction, saves both and is up to 1.6 times as fast.
        async with (
            self._app(url).open_async() as app,
            await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        ):
            task = app.configure_task(QUEUE, connection=connection)

            async def one(payload: Payload) -> None:
                await task.defer_async(**payload)

            async def many(payloads: list[Payload]) -> None:
                await task.batch_defer_async(*payloads)

            yield Publisher(one, many)

    async def work(self, url: str, handle: Handle) -> None:
        app = self._app(url)

        @app.task(name=QUEUE)
        async def handler(**payload: Any) -> None:
            handle(payload)

        # A pool of our own omits that check here, too; deleting finished jobs keeps the table small.
        size = PROCRASTINATE_CONCURRENCY + 1
        async with (
            AsyncConnectionPool(url, min_size=size, max_size=size, open=False) as pool,
            app.open_async(pool),
        ):
            await app.run_worker_async(
                concurrency=PROCRASTINATE_CONCURRENCY, delete_jobs="always", install_signal_handlers=False
            )

    @staticmethod
    def _app(url: str) -> App:
        return App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=1))


CONTESTANTS: dict[str, Contestant] = {
    "skep": Skep(),
    "pgqueuer-asyncpg": PgQueuerOn("asyncpg", on_asyncpg),
    "pgqueuer-psycopg": PgQueuerOn("psycopg", on_psycopg),
    "procrastinate": Procrastinate(),
}
