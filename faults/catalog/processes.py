"""Faults of servers and clients: killed, or stopped as a laptop lid or a paused container does."""

import asyncio
import random
import signal

from faults.catalog.fault import fault, names, some
from faults.world import World


@fault("SIGKILL of a server", lasts=3, stages=("plain", "pooled", "standby", "disk", "crowd"))
async def kill_server(world: World, dice: random.Random) -> str:
    killed = some(dice, world.servers)
    for server in killed:
        server.kill()
    await asyncio.gather(*(world.ready(server) for server in killed))
    return names(killed)


@fault("SIGKILL of consumers", lasts=2, stages=("plain", "pooled", "standby", "clock", "crowd"))
async def kill_consumer(world: World, dice: random.Random) -> str:
    killed = some(dice, world.of("pop"), 3)
    for client in killed:
        client.kill()
        await asyncio.sleep(dice.random() / 2)
    return names(killed)


@fault("SIGKILL of producers", lasts=2)
async def kill_producer(world: World, dice: random.Random) -> str:
    killed = some(dice, world.of("push"))
    for client in killed:
        client.kill()
        await asyncio.sleep(dice.random() / 2)
    return names(killed)


@fault("SIGSTOP of consumers past their leases, and then their acks", lasts=4)
async def stop_consumer(world: World, dice: random.Random) -> str:
    stopped = some(dice, world.of("pop-http", "pop-client", "pop-transform"), 3)
    for client in stopped:
        client.signal(signal.SIGSTOP)
    await asyncio.sleep(dice.uniform(2.2, 5))
    for client in stopped:
        client.signal(signal.SIGCONT)
    return names(stopped)
