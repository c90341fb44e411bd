"""Faults of those who share the database: open transactions, locks in the wrong order, impatience."""

import asyncio
import contextlib
import random
from typing import LiteralString

import psycopg

from faults.catalog.fault import fault
from faults.world import World

LOCK_PARTITION: LiteralString = "SELECT FROM skep.partitions WHERE id = %s FOR UPDATE"
LOCK_RUNS: LiteralString = "SELECT FROM skep.runs WHERE partition_id = %s FOR UPDATE"
PARTITIONS: LiteralString = "SELECT id FROM skep.partitions ORDER BY id"


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


@fault("deadlock bait: partitions locked in the wrong order", lasts=5)
async def deadlock_bait(world: World, dice: random.Random) -> str:
    end = asyncio.get_running_loop().time() + dice.uniform(3, 6)
    counts = await asyncio.gather(*(_bait(world, random.Random(dice.random()), end) for _ in range(3)))
    return f"{sum(counts)} deadlocks were ours"


async def _bait(world: World, dice: random.Random, end: float) -> int:
    """Lock two partitions against the order in which pushes and acks do, with a pause in between."""
    deadlocks = 0
    while asyncio.get_running_loop().time() < end:
        with contextlib.suppress(psycopg.OperationalError):
            async with world.connect(autocommit=False) as db:
                partitions = [partition for (partition,) in await (await db.execute(PARTITIONS)).fetchall()]
                lock = dice.choice((LOCK_PARTITION, LOCK_RUNS))
                try:
                    for partition in sorted(dice.sample(partitions, min(3, len(partitions))), reverse=True):
                        await db.execute(lock, [partition])
                        await asyncio.sleep(dice.uniform(0, 0.2))
                except psycopg.errors.DeadlockDetected:
                    deadlocks += 1
                await db.rollback()
        await asyncio.sleep(dice.uniform(0, 0.1))
    return deadlocks


@fault("lock_timeout of 30 ms beside slow holders of partitions", lasts=5)
async def lock_timeout(world: World, dice: random.Random) -> str:
    """A setting of the database, which sessions take over when they begin: all have to."""
    async with world.connect() as db:
        await db.execute("ALTER DATABASE skep SET lock_timeout = '30ms'")
        await _begin_anew(db)
        end = asyncio.get_running_loop().time() + dice.uniform(3, 6)
        while asyncio.get_running_loop().time() < end:
            async with world.connect(autocommit=False, options="-c lock_timeout=1000") as holder:
                with contextlib.suppress(psycopg.OperationalError):
                    partitions = [partition for (partition,) in await (await holder.execute(PARTITIONS)).fetchall()]
                    await holder.execute(LOCK_PARTITION, [dice.choice(partitions)])
                    await holder.execute(LOCK_RUNS, [dice.choice(partitions)])
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
