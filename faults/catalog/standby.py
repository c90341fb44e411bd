"""Faults of the standby and of PgBouncer."""

import asyncio
import random
import signal

from faults.catalog.fault import fault, some
from faults.world import World


@fault("PgBouncer restarted", stages=("pooled",), lasts=2)
async def restart_pgbouncer(world: World, rng: random.Random) -> str:
    pooler = world.cluster.pooler
    assert pooler is not None
    how = rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    process = pooler.process  # it is restarted as soon as it has ended
    assert process is not None
    pooler.killed = True
    pooler.signal(how)
    while process.poll() is None:
        await asyncio.sleep(0.02)
    await asyncio.sleep(rng.uniform(0, 1))
    return f"by {how.name}"


@fault("promotion of a synchronous standby, the old primary alive for a while", stages=("standby",), lasts=9)
async def promote(world: World, rng: random.Random) -> str:
    return await _promote(world, rng)


@fault("promotion of a standby that lags behind", stages=("lagging",), lasts=9)
async def promote_lagging(world: World, rng: random.Random) -> str:
    """Commits that the old primary had not sent are lost, as asynchronous replication allows."""
    proxy, seconds = world.proxies["replication"], rng.uniform(0.5, 3)
    proxy.black_hole()
    await asyncio.sleep(seconds)
    proxy.cut()
    proxy.heal()
    return f"{seconds:.1f} s behind; {await _promote(world, rng)}"


async def _promote(world: World, rng: random.Random) -> str:
    """Promote the standby. Some proxies lead to the old primary for a while; the others reset their connections."""
    cluster = world.cluster
    old = cluster.primary
    misrouted = some(rng, [name for name in world.proxies if name.startswith("db")])
    await asyncio.to_thread(cluster.promote)
    world.misrouted = dict.fromkeys(misrouted, old)
    for name in world.proxies:
        if name not in misrouted and not name.startswith("to"):
            world.proxies[name].cut()
    await asyncio.sleep(rng.uniform(1, 4))
    world.misrouted = {}
    await asyncio.to_thread(cluster.end_old)
    await world.add_standby()
    return f"{', '.join(misrouted)} continued with the old primary"
