"""Faults of clocks: the database, the servers and the consumers have separate ones."""

import asyncio
import random

from faults.catalog.fault import fault
from faults.world import World

HOUR = 3600


@fault("the clock of the database jumps forward", stages=("clock",), lasts=6)
async def database_clock_forward(world: World, rng: random.Random) -> str:
    return await _jump(world, rng, "database", rng.choice((5, 60, HOUR, 24 * HOUR)))


@fault("the clock of the database jumps back", stages=("clock",), lasts=6)
async def database_clock_back(world: World, rng: random.Random) -> str:
    return await _jump(world, rng, "database", -rng.choice((1, 5, 60, HOUR)))


@fault("the clocks of servers jump", stages=("clock",), lasts=4)
async def server_clock(world: World, rng: random.Random) -> str:
    return await _jump(world, rng, "servers", rng.choice((-HOUR, -30, 30, HOUR, 400 * 24 * HOUR)))


@fault("the clocks of consumers jump", stages=("clock",), lasts=4)
async def consumer_clock(world: World, rng: random.Random) -> str:
    return await _jump(world, rng, "consumers", rng.choice((-HOUR, -30, 30, HOUR, 400 * 24 * HOUR)))


async def _jump(world: World, rng: random.Random, who: str, seconds: float) -> str:
    """Move a clock. It is not reset."""
    clock = world.clocks[who]
    clock.set(clock.offset + seconds)
    await asyncio.sleep(rng.uniform(2, 5))
    return f"by {seconds:+} s, now {clock.offset:+.0f} s"
