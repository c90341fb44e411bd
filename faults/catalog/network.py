"""Faults of the network between clients, servers and database."""

import asyncio
import random
from contextlib import suppress

from faults.catalog.fault import fault, names, some
from faults.world import World

# Any call, a commit, or calls of the protocol. (Prepared statements are sent without their text.)
WORDS_OF_DATABASE = (b"", b"", b"COMMIT")
WORDS_OF_SERVER = (b"POST /api/v1/push", b"GET /api/v1/pop", b"POST /api/v1/ack", b"POST /api/v1/transaction")


@fault("connections cut, and new ones refused for a while", lasts=2, stages=("plain", "pooled"))
async def cut(world: World, rng: random.Random) -> str:
    chosen = some(rng, list(world.proxies.values()))
    for proxy in chosen:
        proxy.refusing = rng.random() < 0.5
        proxy.cut()
    await asyncio.sleep(rng.uniform(0.2, 3))
    for proxy in chosen:
        proxy.heal()
    return names(chosen)


@fault("black hole: no data passes, and no connection is closed", lasts=5)
async def black_hole(world: World, rng: random.Random) -> str:
    """At the end all data arrives late, or the connections are reset."""
    chosen = some(rng, list(world.proxies.values()), 3)
    for proxy in chosen:
        proxy.black_hole()
    await asyncio.sleep(rng.uniform(2, 7))
    resets = rng.random() < 0.5
    for proxy in chosen:
        if resets:
            proxy.cut()
        proxy.heal()
    return f"{names(chosen)}, {'reset' if resets else 'late'} at the end"


@fault("everything delayed", lasts=4)
async def delay(world: World, rng: random.Random) -> str:
    chosen = some(rng, list(world.proxies.values()))
    seconds = rng.choice((0.01, 0.05, 0.2))
    for proxy in chosen:
        proxy.delay = seconds
    await asyncio.sleep(rng.uniform(2, 6))
    for proxy in chosen:
        proxy.heal()
    return f"{names(chosen)} by {seconds} s"


@fault("reset after COMMIT was sent and before the response", lasts=4, stages=("plain", "pooled", "standby"))
async def lose_response(world: World, rng: random.Random) -> str:
    lost = 0
    for _ in range(12):
        proxy = rng.choice(list(world.proxies.values()))
        words = rng.choice(WORDS_OF_SERVER if proxy.name.startswith("to") else WORDS_OF_DATABASE)
        proxy.lose_response(words, early=rng.random() < 0.2)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.7):
                await proxy.lost.wait()
                lost += 1
        proxy.heal()
        await asyncio.sleep(rng.random() * 0.1)
    return f"{lost} responses lost"
