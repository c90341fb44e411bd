"""Faults of PostgreSQL itself."""

import asyncio
import contextlib
import random
from typing import LiteralString

import psycopg

from faults.catalog.fault import fault
from faults.world import World

BUSY: LiteralString = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
    AND application_name <> 'faults' ORDER BY state = 'active' DESC, pid LIMIT %s
"""


@fault("SIGKILL of one backend: PostgreSQL ends all and recovers", lasts=3, stages=("plain", "forgetful"))
async def kill_backend(world: World, rng: random.Random) -> str:
    pid = 0
    for _ in range(rng.randint(1, 2)):
        async with world.connect() as db:
            pids = [pid for (pid,) in await (await db.execute(BUSY, [8])).fetchall()]
        if pids:
            pid = rng.choice(pids[:3])
            world.primary.kill_backend(pid)
        await world.database_is_back()
    return f"process {pid}"


@fault("SIGKILL of the postmaster", lasts=3, stages=("plain", "pooled", "clock", "forgetful", "crowd"))
async def kill_postmaster(world: World, rng: random.Random) -> str:
    await asyncio.to_thread(world.primary.kill)
    down = rng.uniform(0, 2)
    await asyncio.sleep(down)
    await asyncio.to_thread(world.primary.start)
    return f"down for {down:.1f} s and its recovery"


@fault("pg_ctl stop -m immediate", lasts=3)
async def stop_immediate(world: World, rng: random.Random) -> str:
    await asyncio.to_thread(world.primary.stop, "immediate")
    await asyncio.sleep(rng.uniform(0, 2))
    await asyncio.to_thread(world.primary.start)
    return ""


@fault("crash loop: killed again as soon as it is back", lasts=8, stages=("plain", "forgetful"))
async def crash_loop(world: World, rng: random.Random) -> str:
    times = rng.randint(3, 5)
    for _ in range(times):
        await asyncio.to_thread(world.primary.kill)
        await asyncio.to_thread(world.primary.start)
        await asyncio.sleep(rng.uniform(0, 1.5))
    return f"{times} times"


@fault("pg_terminate_backend storm", lasts=4, stages=("plain", "pooled", "standby", "crowd"))
async def terminate_storm(world: World, rng: random.Random) -> str:
    ended = 0
    end = asyncio.get_running_loop().time() + rng.uniform(2, 5)
    with contextlib.suppress(psycopg.Error):
        async with world.connect() as db:
            while asyncio.get_running_loop().time() < end:
                pids = [pid for (pid,) in await (await db.execute(BUSY, [100])).fetchall()]
                for pid in rng.sample(pids, min(3, len(pids))):
                    await db.execute("SELECT pg_terminate_backend(%s)", [pid])
                    ended += 1
                await asyncio.sleep(0.05)
    return f"{ended} sessions"
