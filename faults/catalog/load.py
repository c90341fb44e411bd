"""Faults of users: dashboards, operators, stopped groups, poison messages, many partitions."""

import asyncio
import random
import signal
from itertools import count
from typing import LiteralString

import psycopg
from psycopg.types.json import Jsonb

from faults import state
from faults.catalog.fault import fault, names
from faults.clients.http import Http, NoResponse, NotSent
from faults.history import Content
from faults.world import World

PAGES = (
    "/api/v1/status",
    "/api/v1/status/queues",
    "/api/v1/status/analytics",
    "/api/v1/status/queues/orders",
    "/api/v1/status/queues/orders/messages?limit=100",
    "/api/v1/resources/overview",
    "/api/v1/resources/queues",
    "/api/v1/resources/partitions",
    "/api/v1/consumer-groups",
    "/api/v1/messages?limit=100",
    "/api/v1/dlq?limit=100",
    "/api/v1/analytics/queue-lag",
    "/api/v1/analytics/queue-ops",
    "/metrics/prometheus",
)
DASHBOARDS = 20
_numbers = count(1)


@fault("20 dashboards", lasts=6)
async def dashboards(world: World, rng: random.Random) -> str:
    end = asyncio.get_running_loop().time() + rng.uniform(4, 8)
    pages = [_browse(world, random.Random(rng.random()), end) for _ in range(DASHBOARDS)]
    seen = [status for statuses in await asyncio.gather(*pages) for status in statuses]
    if wrong := sorted({status for status in seen if status not in (200, 503)}):
        world.problems.append(f"dashboards got status {wrong}")
    return f"{len(seen)} pages"


async def _browse(world: World, rng: random.Random, end: float) -> list[int]:
    http = Http(rng.choice(world.servers).port)
    statuses: list[int] = []
    while asyncio.get_running_loop().time() < end:
        try:
            status, _ = await http.call("GET", rng.choice(PAGES))
            statuses.append(status)
        except (NotSent, NoResponse):
            await asyncio.sleep(0.1)
        await asyncio.sleep(rng.uniform(0, 0.2))
    await http.close()
    return statuses


@fault("retention every second while a group is stopped", lasts=6)
async def stall_group(world: World, rng: random.Random) -> str:
    kind = rng.choice(("pop-http", "pop-client", "pop-transform", "pop-auto"))
    stalled = world.of(kind)
    for client in stalled:
        client.signal(signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(4, 7))
    for client in stalled:
        client.signal(signal.SIGCONT)
    return names(stalled)


@fault("poison messages: they fail, kill their consumer, or hang", lasts=3)
async def poison(world: World, rng: random.Random) -> str:
    """Push poison messages among ten others."""
    kinds = ["!fail", "!crash", "!hang", *[""] * 10]
    rng.shuffle(kinds)
    values = [f"poison.{next(_numbers)}{kind}" for kind in kinds]
    items = [Content(f"partition {rng.randrange(4)}", {"v": value}) for value in values]
    call = world.injections.invoke("push", queue="poison", items=items)
    messages = [{"queue": "poison", "partition": item.partition, "payload": item.payload} for item in items]
    try:
        async with world.connect() as db:
            cursor = await db.execute('SELECT partition_id, "offset" FROM skep.push(%s)', [Jsonb(messages)])
            world.injections.returned(call, "ok", stored=await cursor.fetchall())
    except psycopg.Error:
        world.injections.returned(call, "unknown")
    await asyncio.sleep(2)
    return ""


FILL: LiteralString = """
    SELECT count(*) FROM skep.push_many(
        array_fill(%(queue)s::text, ARRAY[%(end)s::integer - %(first)s::integer]),
        (SELECT array_agg(coalesce(%(partition)s, 'partition ' || n) ORDER BY n)
         FROM generate_series(%(first)s, %(end)s - 1) AS n),
        (SELECT array_agg(jsonb_build_object('v', CASE WHEN %(partition)s::text IS NULL THEN 0 ELSE n END) ORDER BY n)
         FROM generate_series(%(first)s, %(end)s - 1) AS n))
"""
CROWD_PARTITIONS, LONG_PARTITION, AT_ONCE = 100_000, 1_000_000, 20_000


@fault("100,000 partitions beside one of 1,000,000 messages", stages=("crowd",))
async def crowd(world: World, _rng: random.Random) -> str:
    """Push all messages before the next fault, during which they are read."""
    begin = asyncio.get_running_loop().time()
    pushed = 0
    for partition, messages in ((None, CROWD_PARTITIONS), ("long", LONG_PARTITION)):
        for first in range(0, messages, AT_ONCE):
            arguments = {"queue": state.CROWD, "partition": partition, "first": first, "end": first + AT_ONCE}
            call = world.injections.invoke("fill", messages=AT_ONCE)
            async with world.connect() as db:
                await db.execute(FILL, arguments)
            world.injections.returned(call, "ok")
            pushed += AT_ONCE
    filled = asyncio.get_running_loop().time() - begin
    return f"{pushed:,} messages pushed in {filled:.0f} s"


@fault("an operator moves a group back and redrives its dead letters", lasts=2)
async def operator(world: World, rng: random.Random) -> str:
    """Seek back by a few messages in each partition, as far as retention has kept them."""
    async with world.connect() as db:
        group = rng.choice(("http", "handlers"))
        call = world.injections.invoke("seek", group=group, queue="orders")
        await db.execute("SELECT skep.seek(%s, 'orders', (clock_timestamp() - interval '2 s')::text)", [group])
        world.injections.returned(call, "ok")
        cursor = await db.execute("SELECT dead_letter_id FROM skep.redrive('orders', 'client')")
        redriven = len(await cursor.fetchall())
    return f"{group} back by 2 s, {redriven} dead letters of client redriven"
