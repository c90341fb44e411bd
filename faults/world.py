"""The processes of a round, and the connections between them.

clients ──┬── proxies to servers ── servers ── proxies to database ──┬── PostgreSQL
          └── proxy of clients ──────────────────────────────────────┘
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from faults import broken, state
from faults.clients.context import DRAINING, Settings
from faults.clients.http import Http, NoResponse, NotSent
from faults.cluster import Clock, Cluster
from faults.history import Writer
from faults.postgres import Postgres, free_port
from faults.processes import Child, Client, Server
from faults.proxy import Proxy
from faults.stage import Stage
from faults.state import State
from skep.engine.install import install
from skep.engine.sources import packaged

log = logging.getLogger("faults")

PATIENCE = 120  # seconds for a server to become ready, on a busy machine
CLOCKS = ("database", "servers", "consumers")
CONNECTIONS_OF_SERVER = 27  # as docs/server.md says: 21 and 6 for upkeep

OBSERVE: LiteralString = """
    SELECT (SELECT coalesce(json_agg(json_build_array(partition_id, first_offset, last_offset)), '[]')
            FROM skep.partition_lookup WHERE partition_id = ANY (%(partitions)s)),
           (SELECT coalesce(json_agg(json_build_array(g.group_name, c.partition_id, c.cursor, c.leased)), '[]')
            FROM skep.partition_consumers c JOIN skep.group_queues g ON g.id = c.group_queue_id
            WHERE c.partition_id = ANY (%(partitions)s))
"""
PARTITIONS: LiteralString = """
    SELECT coalesce(array_agg(p.id), '{}') FROM skep.partitions p JOIN skep.queues q ON q.id = p.queue_id
    WHERE q.name <> %s
"""
BACKLOG: LiteralString = """
    SELECT to_jsonb(c) || jsonb_build_object(
        'now', clock_timestamp(), 'last_offset', l.last_offset, 'group', g, 'runs', (
            SELECT json_agg(r) FROM skep.runs r
            WHERE r.partition_id = c.partition_id AND r.group_queue_id = c.group_queue_id))
    FROM skep.partition_consumers c JOIN skep.partition_lookup l ON l.partition_id = c.partition_id
    JOIN skep.group_queues g ON g.id = c.group_queue_id WHERE c.cursor <= l.last_offset LIMIT 20
"""
LAG: LiteralString = """
    SELECT coalesce(sum(l.lag), 0)::bigint
    FROM unnest(%(groups)s::text[], %(queues)s::text[]) AS asked (group_name, queue)
    CROSS JOIN LATERAL skep.lag(asked.group_name, asked.queue) l
"""


class World:
    """One PostgreSQL, two servers, clients, and the proxies between them."""

    def __init__(self, directory: Path, home: Path, stage: Stage, seed: int) -> None:
        self.directory, self.stage = directory, stage
        self.setup = stage.setup()
        self.clocks = {who: Clock(home / f"{who}.clock") for who in CLOCKS} if stage.clocks else {}
        self.cluster = Cluster(directory, home, stage, self._clock("database"))
        self.misrouted: dict[str, Postgres] = {}  # proxies that still lead to an old primary
        self.injections = Writer(directory / "faults.0.jsonl")
        numbers = range(1, stage.servers + 1)
        self._ports = {f"to s{number}": free_port() for number in numbers}
        wires = [*self._ports, *(f"db of s{number}" for number in numbers), "db"]
        if stage.standby == "asynchronous":
            wires.append("replication")
        self.proxies = {name: Proxy(name, self._target(name)) for name in wires}
        self.servers: list[Server] = []
        self.clients: list[Client] = []
        self._seed = seed
        self._tasks: list[asyncio.Task[None]] = []
        self._memory: dict[str, float] = {}
        self.sources = packaged()
        self.problems: list[str] = []  # unexpected results that faults have seen
        self.ending = asyncio.Event()  # faults that last until the end of the round end now

    def _target(self, name: str) -> Callable[[], int]:
        return lambda: (
            self._ports.get(name) or (self.misrouted[name].port if name in self.misrouted else self.cluster.port)
        )

    def _clock(self, who: str) -> dict[str, str]:
        return self.clocks[who].environment if self.clocks else {}

    @property
    def primary(self) -> Postgres:
        return self.cluster.primary

    @property
    def children(self) -> list[Child]:
        pooler = [self.cluster.pooler] if self.cluster.pooler else []
        return [*pooler, *self.servers, *self.clients]

    def of(self, *kinds: str) -> list[Client]:
        """Return the clients whose kind begins with one of these, such as `push` and `pop`."""
        return [client for client in self.clients if client.kind.startswith(kinds)]

    async def start(self) -> None:
        for proxy in self.proxies.values():
            await proxy.start()
        await asyncio.to_thread(self.cluster.create)
        await asyncio.to_thread(self._prepare)
        if self.stage.standby:
            await self.add_standby()
        self.servers = [self._server(number) for number in range(1, self.stage.servers + 1)]
        crew = self.stage.crew.items()
        self.clients = [self._client(kind, number) for kind, count in crew for number in range(1, count + 1)]
        for child in (*self.servers, *self.clients):
            child.start()
        self._tasks = [asyncio.create_task(work()) for work in (self._supervise, self._observe, self._retain)]
        await self._wait_until_ready()

    async def add_standby(self) -> None:
        wire = self.proxies.get("replication")
        await asyncio.to_thread(self.cluster.add_standby, wire.port if wire else None)

    def _prepare(self) -> None:
        install(self.primary.url())
        with psycopg.connect(self.primary.url(), autocommit=True) as db:
            db.execute(state.ROWS_TABLE)
            if self.stage.build:
                broken.damage_database(db, self.stage.build)
            for queue in self.setup.queues:
                options = {"concurrency": queue.concurrency, "lease_time": queue.lease_time, "retry_delay": 0.05}
                options |= {"retry_limit": queue.retry_limit, **queue.options}
                db.execute("SELECT skep.configure_queue(%s, %s::jsonb)", [queue.name, json.dumps(options)])
                for group in (*queue.groups, *queue.auto_groups):
                    db.execute("SELECT skep.subscribe(%s, %s, mode => 'all')", [group, queue.name])

    def _server(self, number: int) -> Server:
        url = self.primary.url(self.proxies[f"db of s{number}"].port)
        log = self.directory / f"server-{number}.log"
        return Server(
            f"server-{number}",
            log,
            self._ports[f"to s{number}"],
            url,
            {"FAULTS_BROKEN": self.stage.build, **self._clock("servers")},
        )

    def _client(self, kind: str, number: int) -> Client:
        ports = tuple(self.proxies[name].port for name in self._ports)
        settings = Settings(self.primary.url(self.proxies["db"].port), ports, self._seed, **self.stage.clients)
        clock = self._clock("consumers") if kind.startswith("pop") else {}
        return Client(kind, f"{kind}-{number}", self.directory, settings.dump(), clock)

    async def _wait_until_ready(self) -> None:
        """Wait until all clients have started their histories and all servers are ready."""
        while any(not (self.directory / f"{client.name}.1.jsonl").exists() for client in self.clients):
            for child in self.children:
                if child.unexpected:
                    raise RuntimeError(child.unexpected[0])
            await asyncio.sleep(0.1)
        await asyncio.gather(*(self.ready(server) for server in self.servers))

    async def ready(self, server: Server) -> None:
        """Wait until a server is ready; it may have to be restarted first."""
        http = Http(server.port)
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while await self._status(http) != 200:
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeError(f"{server.name} did not become ready: {server.log_tail()}")
            await asyncio.sleep(0.1)
        await http.close()

    async def _status(self, http: Http) -> int | None:
        with contextlib.suppress(NotSent, NoResponse):
            return (await http.call("GET", "/ready"))[0]
        return None

    async def _supervise(self) -> None:
        while True:
            for child in self.children:
                child.restart_if_ended()
            await asyncio.sleep(0.2)

    async def _observe(self) -> None:
        observer = Writer(self.directory / "observer.0.jsonl")
        while True:
            with contextlib.suppress(psycopg.Error):
                async with self.connect() as db:
                    while True:
                        arguments = {"partitions": await self._partitions(db)}
                        ((heads, cursors),) = await (await db.execute(OBSERVE, arguments)).fetchall()
                        observer.returned(observer.invoke("sample", heads=heads, cursors=cursors), "ok")
                        await asyncio.sleep(0.2)
            await asyncio.sleep(0.2)

    async def _retain(self) -> None:
        """Run retention every second, in addition to the servers: a slow group must not lose messages."""
        while True:
            with contextlib.suppress(psycopg.Error):
                async with self.connect() as db:
                    while True:
                        await db.execute("SELECT count(*) FROM skep.retain(%s)", [await self._partitions(db)])
                        await asyncio.sleep(1)
            await asyncio.sleep(0.2)

    async def _partitions(self, db: psycopg.AsyncConnection[Any]) -> list[int]:
        """Return all partitions except those of the crowd."""
        ((partitions,),) = await (await db.execute(PARTITIONS, [state.CROWD])).fetchall()
        return partitions

    @contextlib.asynccontextmanager
    async def connect(self, **options: Any) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        """Connect directly to the primary, without a proxy."""
        options = {"autocommit": True, "connect_timeout": 5, "application_name": "faults", **options}
        async with await psycopg.AsyncConnection.connect(self.primary.url(), **options) as db:
            yield db

    async def database_is_back(self) -> None:
        """Wait until PostgreSQL has recovered."""
        while not await asyncio.to_thread(self.primary.is_ready):
            await asyncio.sleep(0.1)

    def record_memory(self) -> None:
        self._memory = {server.name: server.memory() for server in self.servers}

    async def stop_producing(self) -> None:
        await asyncio.gather(*(client.stop() for client in self.of("push")))

    def heal(self) -> None:
        for proxy in self.proxies.values():
            proxy.heal()

    async def drain(self, patience: float) -> float:
        """Wait until no group has a lag. Return the seconds, or inf after `patience` seconds."""
        (self.directory / DRAINING).touch()
        begin = asyncio.get_running_loop().time()
        while (took := asyncio.get_running_loop().time() - begin) < patience:
            with contextlib.suppress(psycopg.Error):
                if await self._lag() == 0:
                    return took
            await asyncio.sleep(0.1)
        await self._log_backlog()
        return inf

    async def _log_backlog(self) -> None:
        with contextlib.suppress(psycopg.Error):
            async with self.connect() as db:
                for (row,) in await (await db.execute(BACKLOG)).fetchall():
                    log.info("  backlog: %s", row)

    async def _lag(self) -> int:
        pairs = [(g, q.name) for q in self.setup.queues for g in (*q.groups, *q.auto_groups)]
        arguments = {"groups": [group for group, _ in pairs], "queues": [queue for _, queue in pairs]}
        async with self.connect() as db:
            ((lag,),) = await (await db.execute(LAG, arguments)).fetchall()
            return lag

    async def finish(self) -> State:
        """Stop the clients, read the final state while the servers are idle, and stop the servers."""
        await asyncio.gather(*(client.stop() for client in self.clients))
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.problems += [f"the suite failed: {end!r}" for end in ends if isinstance(end, Exception)]
        found = await asyncio.to_thread(state.read, self.primary.url())
        found.most_connections = CONNECTIONS_OF_SERVER * len(self.servers)
        found.memory = {
            server.name: (self._memory.get(server.name, inf), server.memory())
            for server in self.servers
            if server.alive
        }
        await asyncio.gather(*(server.stop() for server in self.servers))
        return found

    async def close(self) -> None:
        """End all processes."""
        for task in self._tasks:
            task.cancel()
        for child in self.children:
            child.wanted = False
            child.kill()
        for proxy in self.proxies.values():
            await proxy.close()
        await asyncio.to_thread(self.cluster.close)

    def unexpected(self) -> list[str]:
        """Return unexpected events: processes that ended, and tracebacks in their logs."""
        found = [*self.problems, *(problem for child in self.children for problem in child.unexpected)]
        logs: Iterable[Path] = self.directory.glob("*.log")
        return found + [f"{log.stem} has a traceback in its log" for log in sorted(logs) if _has_traceback(log)]


def _has_traceback(path: Path) -> bool:
    return "Traceback" in path.read_text(errors="replace")
