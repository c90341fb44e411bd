"""The database is restarted, cleanly or by a kill, under load or idle; its supervisor restarts it."""

import asyncio
import signal
from collections.abc import Generator
from functools import partial

import psycopg
import pytest

from skep import AsyncSkep, Skep
from tests.engine.threads import at_once
from tests.faults.crew import Crew, prepare
from tests.faults.database import Server, running

HOW = pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["clean", "killed"])


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with running() as started:
        yield started


@HOW
def test_restarted_under_load(server: Server, how: signal.Signals) -> None:
    """Clients recover by themselves, and confirmed messages are stored once."""
    queue = f"orders {how.name}"
    prepare(server.url, queue)
    crew = Crew(server.url, queue)
    with crew.at_work():
        with psycopg.connect(server.url, autocommit=True) as observer:
            crew.make_progress(observer)
        server.restart(how)
        with psycopg.connect(server.url, autocommit=True) as observer:
            crew.make_progress(observer)


@HOW
async def test_the_first_call_after_a_restart(server: Server, how: signal.Signals) -> None:
    """No call of an idle client fails, although all connections of its pool were closed."""
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
