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
from skep.upkeep import JOBS, Upkeep, retain
from tests.client.verbs import until
from tests.engine.verbs import broken
from tests.fanout.verbs import AT_ONCE, Q, status

SECONDS = 30 if os.environ.get("SKEP_TEST_ALL") else 10
PARTITIONS = [f"partition {n}" for n in range(6)]
STEADY = [f"steady {n}" for n in range(7)]
MORTAL, SLEEPER, LATE = "mortal", "sleeper", "late"
AHEAD = 3000  # messages that producers may be ahead of the slowest group
FLOORS = """
    SELECT p.name, min(m."offset") FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id GROUP BY 1
"""


class Records:
    """Everything that was pushed, and what each group popped and finished, as the test itself saw it."""

    def __init__(self) -> None:
        self.pushed: dict[str, dict[int, str]] = {partition: {} for partition in PARTITIONS}
        self.popped: dict[str, Counter[str]] = defaultdict(Counter)  # group -> partition -> after the last offset
        self.done: dict[str, dict[str, list[tuple[int, str]]]] = defaultdict(lambda: defaultdict(list))
        self.pending = {*STEADY, MORTAL, SLEEPER}  # groups that hold messages back
        self.checks = 0

    def total(self) -> int:
        return sum(map(len, self.pushed.values()))

    def finished(self, group: str) -> int:
        return sum(map(len, self.done[group].values()))

    def behind(self) -> int:
        return self.total() - min(self.finished(group) for group in STEADY)

    def check_floors(self, floors: dict[str, int]) -> None:
        """Check that no message is deleted before every pending group has popped it."""
        for partition, first in floors.items():
            assert first <= min(self.popped[group][partition] for group in self.pending), partition
        self.checks += 1


async def produce(mq: AsyncSkep, name: str, records: Records, stop: asyncio.Event) -> None:
    dice, number = random.Random(name), 0
    while not stop.is_set():
        batch = [NewMessage(f"{name} {number + n}", dice.choice(PARTITIONS)) for n in range(dice.randrange(1, 40))]
        number += len(batch)
        for message, receipt in zip(batch, await mq.queue(Q).push_many(batch), strict=True):
            assert receipt.offset is not None
            records.pushed[message.partition][receipt.offset] = message.payload
        await until(lambda: records.behind() < AHEAD, "the groups to keep up")


async def consume(mq: AsyncSkep, group: str, records: Records, stop: asyncio.Event) -> None:
    while not stop.is_set():
        batch = await mq.queue(Q).pop(group=group, batch=200, partitions=3, wait=0.2)
        for message in batch:
            records.popped[group][message.partition] = message.offset + 1
        try:
            await batch.ack()
        except StaleLease:  # it was paused meanwhile: all of it is delivered again
            assert group == SLEEPER
            continue
        for message in batch:
            records.done[group][message.partition].append((message.offset, message.payload))


async def check_deleted(mq: AsyncSkep, url: str, records: Records, stop: asyncio.Event) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not stop.is_set():
            rows = await (await connection.execute(FLOORS)).fetchall()
            records.check_floors(dict(rows))
            await asyncio.sleep(0.02)


@pytest.fixture
async def clients(database_url: str) -> AsyncGenerator[Callable[[], AsyncSkep]]:
    async with AsyncExitStack() as stack:

        def one() -> AsyncSkep:
            client = AsyncSkep(database_url, pool_size=4, poll_interval=0.1)
            stack.push_async_callback(client.close)
            return client

        yield one


class Load:
    """All producers, groups and upkeep; `end` stops all of them, a group may end earlier."""

    def __init__(self, clients: Callable[[], AsyncSkep], url: str) -> None:
        self.clients, self.url, self.records = clients, url, Records()
        self.mq = clients()
        self.pushing, self.end, self.death = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        jobs = [replace(job, every=job.every / 100) for job in JOBS]
        self.servers = [Upkeep(clients(), jobs) for _ in range(2)]

    async def begin(self) -> None:
        await self.mq.queue(Q).configure(**AT_ONCE, dead_group_grace_seconds=0)
        for group in self.records.pending:
            life: dict[str, Any] = {"heartbeat_interval": 0.2, "heartbeat_timeout": 1.0} if group == MORTAL else {}
            await self.mq.subscribe(group, Q, mode="all", **life)
            self.join(group)
        for number in range(3):
            self.tasks.append(
                asyncio.create_task(produce(self.clients(), f"producer {number}", self.records, self.pushing))
            )
        self.tasks.append(asyncio.create_task(check_deleted(self.mq, self.url, self.records, self.end)))
        self.upkeep = [asyncio.create_task(server.run()) for server in self.servers]

    def join(self, group: str) -> None:
        stop = self.death if group == MORTAL else self.end
        self.tasks.append(asyncio.create_task(consume(self.clients(), group, self.records, stop)))

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


async def play(load: Load) -> dict[str, int]:
    """Let a group die, pause one, let one join, resume; return the latest allowed start of the late one."""
    records, mq, start = load.records, load.mq, monotonic()
    await load.until_second(start + 0.2 * SECONDS)
    load.death.set()
    records.pending.remove(MORTAL)
    await until(lambda: is_dead(mq), "the silent group to be declared dead")
    await load.until_second(start + 0.35 * SECONDS)
    await mq.pause(SLEEPER, Q)
    await load.until_second(start + 0.5 * SECONDS)
    latest = dict(records.popped[SLEEPER])
    await mq.subscribe(LATE, Q, mode="all", backfill=True)
    load.join(LATE)
    await load.until_second(start + 0.7 * SECONDS)
    await mq.resume(SLEEPER, Q)
    await load.until_second(start + SECONDS)
    return latest


async def is_dead(mq: AsyncSkep) -> bool:
    return await status(mq, MORTAL) == "DEAD"


@pytest.mark.timeout(60 + 4 * SECONDS)
async def test_every_group_gets_every_message_under_load(clients: Callable[[], AsyncSkep], database_url: str):
    """One of ten dies, one is paused and resumed, one joins late, under load and with upkeep running.

    Scenarios 83 to 89, 102.
    """
    load = Load(clients, database_url)
    records = load.records
    await load.begin()
    try:
        latest = await play(load)
        load.pushing.set()
        await until(lambda: all(records.finished(g) == records.total() for g in (*STEADY, SLEEPER)), "all to be done")
        late = {partition: records.done[LATE][partition][0][0] for partition in PARTITIONS}
        await until(lambda: records.finished(LATE) == records.total() - sum(late.values()), "the late one to be done")
    finally:
        await load.close()
    assert all(server.healthy for server in load.servers)
    assert records.checks > SECONDS
    for group, first in [*((group, dict.fromkeys(PARTITIONS, 0)) for group in (*STEADY, SLEEPER)), (LATE, late)]:
        for partition in PARTITIONS:
            pending = sorted(records.pushed[partition].items())[first[partition] :]
            assert records.done[group][partition] == pending, (
                group,
                partition,
            )  # each once, in order, as it was pushed
    assert [partition for partition in PARTITIONS if late[partition] > latest.get(partition, 0)] == []
    await retain(load.mq)
    with psycopg.connect(database_url, autocommit=True) as db:
        assert db.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]
        query = "SELECT group_name, sum(messages)::bigint FROM skep.missed_messages GROUP BY 1"
        taken = dict(db.execute(query).fetchall())
        assert taken == {MORTAL: records.total() - records.finished(MORTAL)}
        assert broken(db) == {}
