"""Faults of the disk."""

import asyncio
import os
import random

from faults.catalog.fault import fault
from faults.world import World


@fault("disk full on a small file system", stages=("disk",), lasts=7)
async def disk_full(world: World, rng: random.Random) -> str:
    """Fill the disk almost completely. The effect depends on whether WAL or a table needs space first."""
    left = rng.choice((0, 64, 512, 3000)) * 1024
    ballast = world.cluster.disk / "ballast"
    space = os.statvfs(world.cluster.disk)
    size = max(space.f_bavail * space.f_frsize - left, 0)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    await asyncio.sleep(rng.uniform(2, 6))
    ballast.unlink()
    died = not world.primary.alive
    await asyncio.to_thread(world.primary.start)  # as a supervisor would, if it has stopped
    return f"{left // 1024} kB left{', the postmaster gave up' if died else ''}"
