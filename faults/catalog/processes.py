"""Faults of servers and clients: killed, or stopped like a suspended machine or a paused container."""

import asyncio
import random
import signal

from faults.catalog.fault import fault, names, some
from faults.world import World


@fault("SIGKILL of a server", lasts=3, stages=("plain", "pooled", "standby", "disk", "crowd"))
async def kill_server(world: World, rng: random.Random) -> str:
    killed = some(rng, world.servers)
    for server in killed:
        server.kill()
    await asyncio.gather(*(world.ready(server) for server in killed))
    return names(killed)


@fault("SIGKILL of consumers", lasts=2, stages=("plain", "pooled", "standby", "clock", "crowd"))
async def kill_consumer(world: World, rng: random.Random) -> str:
    killed = some(rng, world.of("pop"), 3)
    for client in killed:
        client.kill()
        await asyncio.sleep(rng.random() / 2)
    return names(killed)


@fault("SIGKILL of producers", lasts=2)
async def kill_producer(world: World, rng: random.Random) -> str:
    killed = some(rng, world.of("push"))
    for client in killed:
        client.kill()
        await asyncio.sleep(rng.random() / 2)
    return names(killed)


@fault("SIGSTOP of consumers past their leases, and then their acks", lasts=4)
async def stop_consumer(world: World, rng: random.Random) -> str:
    stopped = some(rng, world.of("pop-http", "pop-client", "pop-transform"), 3)
    for client in stopped:
        client.signal(signal.SIGSTOP)
    await asyncio.sleep(rng.uniform(2.2, 5))
    for client in stopped:
        client.signal(signal.SIGCONT)
    return names(stopped)
