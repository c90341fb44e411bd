"""Faults of other sessions of the database: open transactions, locks in the wrong order, lock timeouts."""

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
async def hold_transaction(world: World, _rng: random.Random) -> str:
    """Hold a transaction id and a snapshot, so that newer dead rows cannot be removed. Reopen it if it is ended."""
    opened = 0
    while not world.ending.is_set():
        with contextlib.suppress(psycopg.Error):
            async with world.connect(autocommit=False) as db:
                await db.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
                await db.execute("CREATE TEMP TABLE held (x integer)")
                opened += 1
                while not world.ending.is_set():
                    await db.execute("SELECT 1")  # notices if the session was ended
                    await asyncio.sleep(0.3)
                await db.rollback()
        await asyncio.sleep(0.1)
    return f"opened {opened} times"


@fault("deadlock bait: partitions locked in the wrong order", lasts=5)
async def deadlock_lock_in_wrong_order(world: World, rng: random.Random) -> str:
    end = asyncio.get_running_loop().time() + rng.uniform(3, 6)
    counts = await asyncio.gather(*(_lock_in_wrong_order(world, random.Random(rng.random()), end) for _ in range(3)))
    return f"{sum(counts)} deadlocks in these sessions"


async def _lock_in_wrong_order(world: World, rng: random.Random, end: float) -> int:
    """Lock partitions in the opposite order of pushes and acks, with pauses in between."""
    deadlocks = 0
    while asyncio.get_running_loop().time() < end:
        with contextlib.suppress(psycopg.OperationalError):
            async with world.connect(autocommit=False) as db:
                partitions = [partition for (partition,) in await (await db.execute(PARTITIONS)).fetchall()]
                lock = rng.choice((LOCK_PARTITION, LOCK_RUNS))
                try:
                    for partition in sorted(rng.sample(partitions, min(3, len(partitions))), reverse=True):
                        await db.execute(lock, [partition])
                        await asyncio.sleep(rng.uniform(0, 0.2))
                except psycopg.errors.DeadlockDetected:
                    deadlocks += 1
                await db.rollback()
        await asyncio.sleep(rng.uniform(0, 0.1))
    return deadlocks


@fault("lock_timeout of 30 ms while partitions are locked", lasts=5)
async def lock_timeout(world: World, rng: random.Random) -> str:
    """Change a setting of the database and restart all sessions, so that they use it."""
    async with world.connect() as db:
        await db.execute("ALTER DATABASE skep SET lock_timeout = '30ms'")
        await _restart_sessions(db)
        end = asyncio.get_running_loop().time() + rng.uniform(3, 6)
        while asyncio.get_running_loop().time() < end:
            async with world.connect(autocommit=False, options="-c lock_timeout=1000") as holder:
                with contextlib.suppress(psycopg.OperationalError):
                    partitions = [partition for (partition,) in await (await holder.execute(PARTITIONS)).fetchall()]
                    await holder.execute(LOCK_PARTITION, [rng.choice(partitions)])
                    await holder.execute(LOCK_RUNS, [rng.choice(partitions)])
                    await asyncio.sleep(rng.uniform(0, 0.3))
                await holder.rollback()
        await db.execute("ALTER DATABASE skep RESET lock_timeout")
        await _restart_sessions(db)
    return ""


async def _restart_sessions(db: psycopg.AsyncConnection) -> None:
    await db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name <> 'faults' AND backend_type = 'client backend'"
    )
