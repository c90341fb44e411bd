"""Faults of clocks: each of the database, the servers and the consumers has its own."""

import asyncio
import random

from faults.catalog.fault import fault
from faults.world import World

HOUR = 3600


@fault("the clock of the database jumps forward", stages=("clock",), lasts=6)
async def database_clock_forward(world: World, dice: random.Random) -> str:
    return await _jump(world, dice, "database", dice.choice((5, 60, HOUR, 24 * HOUR)))


@fault("the clock of the database jumps back", stages=("clock",), lasts=6)
async def database_clock_back(world: World, dice: random.Random) -> str:
    return await _jump(world, dice, "database", -dice.choice((1, 5, 60, HOUR)))


@fault("the clocks of servers jump", stages=("clock",), lasts=4)
async def server_clock(world: World, dice: random.Random) -> str:
    return await _jump(world, dice, "servers", dice.choice((-HOUR, -30, 30, HOUR, 400 * 24 * HOUR)))


@fault("the clocks of consumers jump", stages=("clock",), lasts=4)
async def consumer_clock(world: World, dice: random.Random) -> str:
    return await _jump(world, dice, "consumers", dice.choice((-HOUR, -30, 30, HOUR, 400 * 24 * HOUR)))


async def _jump(world: World, dice: random.Random, who: str, seconds: float) -> str:
    """Jump, and stay there: nobody sets it right again."""
    clock = world.clocks[who]
    clock.set(clock.offset + seconds)
    await asyncio.sleep(dice.uniform(2, 5))
    return f"by {seconds:+} s, now {clock.offset:+.0f} s"
