"""The database is restarted, cleanly or not, under load or at rest; its supervisor starts it again by itself."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from skep import AsyncSkep, Skep, embedded
from skep.engine.install import install
from tests.engine.crowd import at_once, until
from tests.faults.crew import Crew, prepare

# A server that is killed loses nothing that it has confirmed; the machine goes on, so nothing waits for the disk.
SETTINGS = {"fsync": "off", "shared_preload_libraries": "", "max_connections": "100"}
HOW = pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["clean", "killed"])


class Server:
    """An embedded PostgreSQL of these tests' own, and what can happen to it."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self.data_dir, self.url = data_dir, url

    def end(self, how: signal.Signals) -> int:
        """SIGINT is the clean shutdown of PostgreSQL, SIGKILL is none; returns who it was."""
        postmaster = self._postmaster()
        os.kill(postmaster, how)
        return postmaster

    def restart(self, how: signal.Signals) -> None:
        """End it and wait until it is back."""
        before = self.end(how)
        until(lambda: self._postmaster() not in (0, before) and self._answers(), "the supervisor to start it again")

    def _postmaster(self) -> int:
        try:
            return int((self.data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    data_dir = Path(tempfile.mkdtemp(prefix="skep-test-"))
    with embedded.start(data_dir, settings=SETTINGS) as started:
        install(started.url)
        yield Server(data_dir, started.url)
    shutil.rmtree(data_dir)


@HOW
def test_restarted_under_load(server: Server, how: signal.Signals) -> None:
    """Section 8: database down = recovery by itself. What producers were told is stored is, and once."""
    queue = f"orders {how.name}"
    prepare(server.url, queue)
    crew = Crew(server.url, queue)
    with crew.at_work():
        with psycopg.connect(server.url, autocommit=True) as observer:
            crew.get_on(observer)
        server.restart(how)
        with psycopg.connect(server.url, autocommit=True) as observer:
            crew.get_on(observer)


@HOW
async def test_the_first_call_after_a_restart(server: Server, how: signal.Signals) -> None:
    """Clients that were idle meanwhile notice nothing: every connection of their pools is dead, and no call fails."""
    async with AsyncSkep(server.url, pool_size=5) as mq:
        with Skep(server.url, pool_size=5) as plain:
            push = partial(plain.queue("idle").push, "hello")
            await asyncio.gather(*[mq.queue("idle").push("hello") for _ in range(10)])
            await asyncio.to_thread(at_once, *[push] * 10)
            await asyncio.to_thread(server.restart, how)
            push()
            await mq.queue("idle").push("hello")
            at_once(*[push] * 10)
            await asyncio.gather(*[mq.queue("idle").push("hello") for _ in range(10)])
        await mq.queue("idle").delete()
