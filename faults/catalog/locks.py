"""Faults of those who share the database: open transactions, locks in the wrong order, impatience."""

import asyncio
import contextlib
import random
from typing import LiteralString

import psycopg

from faults.catalog.fault import fault
from faults.world import World

LOCK_LANE: LiteralString = "SELECT FROM skep.partitions WHERE id = %s FOR UPDATE"
LOCK_RUNS: LiteralString = "SELECT FROM skep.runs WHERE partition_id = %s FOR UPDATE"
LANES: LiteralString = "SELECT id FROM skep.partitions ORDER BY id"


@fault("a transaction held open for the rest of the run", standing=True, stages=("plain", "pooled"))
async def hold_transaction(world: World, _dice: random.Random) -> str:
    """It has a transaction id and a snapshot, so that nothing younger can be vacuumed. Opened anew when it is ended."""
    opened = 0
    while not world.ending.is_set():
        with contextlib.suppress(psycopg.Error):
            async with world.connect(autocommit=False) as db:
                await db.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
                await db.execute("CREATE TEMP TABLE held (x integer)")
                opened += 1
                while not world.ending.is_set():
                    await db.execute("SELECT 1")  # or it would not notice its end
                    await asyncio.sleep(0.3)
                await db.rollback()
        await asyncio.sleep(0.1)
    return f"opened {opened} times"


@fault("deadlock bait: lanes locked in the wrong order", lasts=5)
async def deadlock_bait(world: World, dice: random.Random) -> str:
    end = asyncio.get_running_loop().time() + dice.uniform(3, 6)
    counts = await asyncio.gather(*(_bait(world, random.Random(dice.random()), end) for _ in range(3)))
    return f"{sum(counts)} deadlocks were ours"


async def _bait(world: World, dice: random.Random, end: float) -> int:
    """Lock two lanes against the order in which pushes and answers do, with a pause in between."""
    deadlocks = 0
    while asyncio.get_running_loop().time() < end:
        with contextlib.suppress(psycopg.OperationalError):
            async with world.connect(autocommit=False) as db:
                lanes = [lane for (lane,) in await (await db.execute(LANES)).fetchall()]
                lock = dice.choice((LOCK_LANE, LOCK_RUNS))
                try:
                    for lane in sorted(dice.sample(lanes, min(3, len(lanes))), reverse=True):
                        await db.execute(lock, [lane])
                        await asyncio.sleep(dice.uniform(0, 0.2))
                except psycopg.errors.DeadlockDetected:
                    deadlocks += 1
                await db.rollback()
        await asyncio.sleep(dice.uniform(0, 0.1))
    return deadlocks


@fault("lock_timeout of 30 ms beside slow holders of lanes", lasts=5)
async def lock_timeout(world: World, dice: random.Random) -> str:
    """A setting of the database, which sessions take over when they begin: all have to."""
    async with world.connect() as db:
        await db.execute("ALTER DATABASE skep SET lock_timeout = '30ms'")
        await _begin_anew(db)
        end = asyncio.get_running_loop().time() + dice.uniform(3, 6)
        while asyncio.get_running_loop().time() < end:
            async with world.connect(autocommit=False, options="-c lock_timeout=1000") as holder:
                with contextlib.suppress(psycopg.OperationalError):
                    lanes = [lane for (lane,) in await (await holder.execute(LANES)).fetchall()]
                    await holder.execute(LOCK_LANE, [dice.choice(lanes)])
                    await holder.execute(LOCK_RUNS, [dice.choice(lanes)])
                    await asyncio.sleep(dice.uniform(0, 0.3))
                await holder.rollback()
        await db.execute("ALTER DATABASE skep RESET lock_timeout")
        await _begin_anew(db)
    return ""


async def _begin_anew(db: psycopg.AsyncConnection) -> None:
    await db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name <> 'faults' AND backend_type = 'client backend'"
    )
