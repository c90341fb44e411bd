"""Faults of what stands beside or before the database: its standby, and PgBouncer."""

import asyncio
import random
import signal

from faults.catalog.fault import fault, some
from faults.world import World


@fault("PgBouncer restarted", stages=("pooled",), lasts=2)
async def restart_pgbouncer(world: World, dice: random.Random) -> str:
    pooler = world.cluster.pooler
    assert pooler is not None
    how = dice.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    process = pooler.process  # it is started again as soon as it has ended
    assert process is not None
    pooler.killed = True
    pooler.signal(how)
    while process.poll() is None:
        await asyncio.sleep(0.02)
    await asyncio.sleep(dice.uniform(0, 1))
    return f"by {how.name}"


@fault("promotion of a synchronous standby, the old primary alive for a while", stages=("standby",), lasts=9)
async def promote(world: World, dice: random.Random) -> str:
    return await _promote(world, dice)


@fault("promotion of a standby that lags behind", stages=("lagging",), lasts=9)
async def promote_lagging(world: World, dice: random.Random) -> str:
    """What the old primary had accepted and not sent is lost: that is what asynchronous means."""
    wire, seconds = world.proxies["replication"], dice.uniform(0.5, 3)
    wire.hole()
    await asyncio.sleep(seconds)
    wire.cut()
    wire.heal()
    return f"{seconds:.1f} s behind; {await _promote(world, dice)}"


async def _promote(world: World, dice: random.Random) -> str:
    """Some of the clients find the new primary later than others, and those who are connected stay where they are."""
    cluster = world.cluster
    old = cluster.primary
    astray = some(dice, [name for name in world.proxies if name.startswith("db")])
    await asyncio.to_thread(cluster.promote)
    world.astray = dict.fromkeys(astray, old)
    for name in world.proxies:
        if name not in astray and not name.startswith("to"):
            world.proxies[name].cut()
    await asyncio.sleep(dice.uniform(1, 4))
    world.astray = {}
    await asyncio.to_thread(cluster.end_old)
    await world.add_standby()
    return f"{', '.join(astray)} went on with the old one"
