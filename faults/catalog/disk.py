"""Faults of the disk."""

import asyncio
import os
import random

from faults.catalog.fault import fault
from faults.world import World


@fault("disk full on a small file system", stages=("disk",), lasts=7)
async def disk_full(world: World, dice: random.Random) -> str:
    """Fill all but a little; what PostgreSQL does then depends on whether it is WAL or a table that wants more."""
    left = dice.choice((0, 64, 512, 3000)) * 1024
    ballast = world.cluster.disk / "ballast"
    space = os.statvfs(world.cluster.disk)
    size = max(space.f_bavail * space.f_frsize - left, 0)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    await asyncio.sleep(dice.uniform(2, 6))
    ballast.unlink()
    died = not world.primary.alive
    await asyncio.to_thread(world.primary.start)  # as a supervisor would, if it has given up
    return f"{left // 1024} kB left{', the postmaster gave up' if died else ''}"
