"""Upgrades of the schema under load."""

import asyncio
import random
from dataclasses import replace

from faults.catalog.fault import fault
from faults.world import World
from skep.engine.install import install
from skep.engine.sources import Migration, SqlFile


@fault("schema upgrade: all functions dropped and created again", stages=("upgrade",), lasts=3)
async def upgrade_code(world: World, rng: random.Random) -> str:
    file = SqlFile("98_faults", f"-- {rng.random()}\n")
    functions = [each for each in world.sources.functions if each.name != file.name]
    world.sources = replace(world.sources, functions=(*functions[:-1], file, functions[-1]))
    await asyncio.to_thread(install, world.primary.url(), world.sources)
    return ""


@fault("schema upgrade: a migration that changes tables", stages=("upgrade",), lasts=3)
async def upgrade_state(world: World, rng: random.Random) -> str:
    """Add a column to a busy table, and an index."""
    number = world.sources.version + 1
    table = rng.choice(("messages", "runs", "partitions", "queues", "group_queues", "journal"))
    sql = f"ALTER TABLE skep.{table} ADD faults_{number} integer; CREATE INDEX ON skep.dead_letters (failed_at);"
    migration = Migration(f"{number:04}_add_faults_{number}", sql)
    world.sources = replace(world.sources, migrations=(*world.sources.migrations, migration))
    report = await asyncio.to_thread(install, world.primary.url(), world.sources)
    return f"skep.{table}, version {report.version}"
