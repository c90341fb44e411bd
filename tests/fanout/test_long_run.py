"""Ten groups under load with upkeep running. The test keeps its own records and relies on no report of Skep."""

import asyncio
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from time import monotonic
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import StaleLease
from skep.upkeep import DUTIES, Upkeep
from skep.upkeep.retainer import retain
from tests.client.verbs import until
from tests.engine.verbs import broken
from tests.fanout.verbs import AT_ONCE, Q, status

SECONDS = 60 if os.environ.get("SKEP_TEST_ALL") else 20
LANES = [f"lane {n}" for n in range(6)]
STEADY = [f"steady {n}" for n in range(7)]
MORTAL, SLEEPER, LATE = "mortal", "sleeper", "late"
AHEAD = 3000  # messages that producers may be ahead of the slowest group
FLOORS = """
    SELECT p.name, min(m."offset") FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id GROUP BY 1
"""


class Books:
    """Everything that was pushed, and what each group popped and finished, as the test itself saw it."""

    def __init__(self) -> None:
        self.pushed: dict[str, dict[int, str]] = {lane: {} for lane in LANES}
        self.popped: dict[str, Counter[str]] = defaultdict(Counter)  # group -> partition -> after the last offset
        self.done: dict[str, dict[str, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
        self.owed = {*STEADY, MORTAL, SLEEPER}  # groups that hold messages back
        self.looks = 0

    def total(self) -> int:
        return sum(map(len, self.pushed.values()))

    def finished(self, group: str) -> int:
        return sum(map(len, self.done[group].values()))

    def behind(self) -> int:
        return self.total() - min(self.finished(group) for group in STEADY)

    def check_floors(self, floors: dict[str, int]) -> None:
        """Check that no message is deleted before every pending group has popped it."""
        for lane, first in floors.items():
            assert first <= min(self.popped[group][lane] for group in self.owed), lane
        self.looks += 1


async def produce(mq: AsyncSkep, name: str, books: Books, stop: asyncio.Event) -> None:
    dice, number = random.Random(name), 0
    while not stop.is_set():
        batch = [NewMessage(f"{name} {number + n}", dice.choice(LANES)) for n in range(dice.randrange(1, 40))]
        number += len(batch)
        for message, receipt in zip(batch, await mq.queue(Q).push_many(batch), strict=True):
            assert receipt.offset is not None
            books.pushed[message.partition][receipt.offset] = message.payload
        await until(lambda: books.behind() < AHEAD, "the groups to keep up")


async def consume(mq: AsyncSkep, group: str, books: Books, stop: asyncio.Event) -> None:
    while not stop.is_set():
        batch = await mq.queue(Q).pop(group=group, batch=200, partitions=3, wait=0.2)
        for message in batch:
            books.popped[group][message.partition] = message.offset + 1
        try:
            await batch.ack()
        except StaleLease:  # it was paused meanwhile: all of it is delivered again
            assert group == SLEEPER
            continue
        for message in batch:
            books.done[group][message.partition].append((message.offset, message.payload))


async def look(mq: AsyncSkep, url: str, books: Books, stop: asyncio.Event) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not stop.is_set():
            rows = await (await connection.execute(FLOORS)).fetchall()
            books.check_floors(dict(rows))
            await asyncio.sleep(0.02)


@pytest.fixture
async def clients(database_url: str) -> AsyncGenerator[Callable[[], AsyncSkep]]:
    async with AsyncExitStack() as stack:

        def one() -> AsyncSkep:
            client = AsyncSkep(database_url, pool_size=4, poll_interval=0.1)
            stack.push_async_callback(client.close)
            return client

        yield one


class Stage:
    """All producers, groups and upkeep; `end` stops all of them, a group may end earlier."""

    def __init__(self, clients: Callable[[], AsyncSkep], url: str) -> None:
        self.clients, self.url, self.books = clients, url, Books()
        self.mq = clients()
        self.pushing, self.end, self.death = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        duties = [replace(duty, every=duty.every / 100) for duty in DUTIES]
        self.servers = [Upkeep(clients(), duties) for _ in range(2)]

    async def begin(self) -> None:
        await self.mq.queue(Q).configure(**AT_ONCE, dead_group_grace_seconds=0)
        for group in self.books.owed:
            life: dict[str, Any] = {"heartbeat_interval": 0.2, "heartbeat_timeout": 1.0} if group == MORTAL else {}
            await self.mq.subscribe(group, Q, mode="all", **life)
            self.join(group)
        for number in range(3):
            self.tasks.append(
                asyncio.create_task(produce(self.clients(), f"producer {number}", self.books, self.pushing))
            )
        self.tasks.append(asyncio.create_task(look(self.mq, self.url, self.books, self.end)))
        self.upkeep = [asyncio.create_task(server.run()) for server in self.servers]

    def join(self, group: str) -> None:
        stop = self.death if group == MORTAL else self.end
        self.tasks.append(asyncio.create_task(consume(self.clients(), group, self.books, stop)))

    async def until_second(self, moment: float) -> None:
        """Let the others work; an error in one of them ends the test."""
        while (left := moment - monotonic()) > 0:
            done, _ = await asyncio.wait(self.tasks, timeout=min(left, 0.5), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()

    async def close(self) -> None:
        self.end.set()
        for server in self.servers:
            server.stop()
        await asyncio.gather(*self.tasks, *self.upkeep)


async def play(stage: Stage) -> dict[str, int]:
    """Let a group die, pause one, let one join, resume; return the latest allowed start of the late one."""
    books, mq, start = stage.books, stage.mq, monotonic()
    await stage.until_second(start + 0.2 * SECONDS)
    stage.death.set()
    books.owed.remove(MORTAL)
    await until(lambda: is_dead(mq), "the silent group to be declared dead")
    await stage.until_second(start + 0.35 * SECONDS)
    await mq.pause(SLEEPER, Q)
    await stage.until_second(start + 0.5 * SECONDS)
    latest = dict(books.popped[SLEEPER])
    await mq.subscribe(LATE, Q, mode="all", backfill=True)
    stage.join(LATE)
    await stage.until_second(start + 0.7 * SECONDS)
    await mq.resume(SLEEPER, Q)
    await stage.until_second(start + SECONDS)
    return latest


async def is_dead(mq: AsyncSkep) -> bool:
    return await status(mq, MORTAL) == "DEAD"


@pytest.mark.timeout(60 + 4 * SECONDS)
async def test_every_group_gets_every_message_under_load(clients: Callable[[], AsyncSkep], database_url: str):
    """One of ten dies, one is paused and resumed, one joins late, under load and with upkeep running (scenarios 83 to
    89, 102)."""
    stage = Stage(clients, database_url)
    books = stage.books
    await stage.begin()
    try:
        latest = await play(stage)
        stage.pushing.set()
        await until(lambda: all(books.finished(g) == books.total() for g in (*STEADY, SLEEPER)), "all to be done")
        late = {lane: books.done[LATE][lane][0][0] for lane in LANES}
        await until(lambda: books.finished(LATE) == books.total() - sum(late.values()), "the late one to be done")
    finally:
        await stage.close()
    assert all(server.healthy for server in stage.servers)
    assert books.looks > SECONDS
    for group, first in [*((group, dict.fromkeys(LANES, 0)) for group in (*STEADY, SLEEPER)), (LATE, late)]:
        for lane in LANES:
            owed = sorted(books.pushed[lane].items())[first[lane] :]
            assert books.done[group][lane] == owed, (group, lane)  # each once, in order, as it was pushed
    assert [lane for lane in LANES if late[lane] > latest.get(lane, 0)] == []
    await retain(stage.mq)
    with psycopg.connect(database_url, autocommit=True) as db:
        assert db.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]
        query = "SELECT group_name, sum(messages)::bigint FROM skep.missed_messages GROUP BY 1"
        taken = dict(db.execute(query).fetchall())
        assert taken == {MORTAL: books.total() - books.finished(MORTAL)}
        assert broken(db) == {}
