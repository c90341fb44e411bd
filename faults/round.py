"""One round: a fresh world, its faults one after the other, the end, and the verdict."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import psycopg

from faults import history, state
from faults.catalog import FAULTS
from faults.checker import Index, Violation, check
from faults.checker.log import lost_by_contract
from faults.history import Harm, History
from faults.plan import Round
from faults.world import World

log = logging.getLogger("faults")

WARM_UP = 2  # seconds of load before the first fault
PATIENCE = 90  # seconds for the last message after the last fault


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault of a round: the calls from its begin to that of the next one, and how long everyone needed to get on."""

    fault: str
    text: str
    operations: int
    recovery: float | None


@dataclass(slots=True)
class Verdict:
    """What a round has shown."""

    round: int
    stage: str
    seconds: float
    operations: int
    messages: int
    drained: float
    lost_by_contract: int = 0  # a setting allows to lose the last moments before a crash
    struck: list[Struck] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


async def run(planned: Round, world: World, patience: float = PATIENCE) -> Verdict:
    begin = time.monotonic()
    try:
        await world.start()
        await asyncio.sleep(WARM_UP)
        world.remember_memory()
        standing: list[asyncio.Task[None]] = []
        for step in planned.steps:
            await asyncio.sleep(step.pause)
            strike = _strike(world, step.fault, random.Random(step.seed))
            if FAULTS[step.fault].standing:
                standing.append(asyncio.create_task(strike))
            else:
                await strike
        await asyncio.sleep(WARM_UP)
        world.ending.set()
        await asyncio.gather(*standing)
        world.heal()
        await world.stop_producing()
        drained = await world.drain(patience)
        found = await world.finish()
    finally:
        await world.close()
    state.save(world.directory, world.setup, found)
    verdict = judge(planned, world.directory, time.monotonic() - begin)
    verdict.drained = drained
    verdict.violations += [Violation(text, rule="nobody falls over") for text in world.surprises()]
    return verdict


async def _strike(world: World, name: str, dice: random.Random) -> None:
    log.info("  %s ...", name)
    call = world.harms.invoke("harm", fault=name)
    try:
        text = await FAULTS[name].run(world, dice)
    except psycopg.Error as error:  # another fault has met it
        text = f"cut short: {error}"
    world.harms.told(call, "ok", text=text)
    log.info("  %s: %s", name, text)


def judge(planned: Round, directory: Path, seconds: float) -> Verdict:
    """Check what a round has left behind."""
    told = history.read(directory)
    setup, found = state.load(directory)
    messages = sum(head.last + 1 for head in found.heads.values())
    verdict = Verdict(planned.number, planned.stage, seconds, told.operations, messages, 0)
    verdict.violations = check(setup, told, found)
    verdict.lost_by_contract = lost_by_contract(Index(setup, told, found))
    verdict.struck = _struck(told)
    return verdict


def _struck(told: History) -> list[Struck]:
    harms = sorted(told.harms, key=lambda harm: harm.begin)
    begins = [harm.begin for harm in harms[1:]] + [inf]
    calls = sorted(call.invoked for call in told.calls)
    return [
        Struck(harm.fault, harm.text, sum(harm.begin <= at < end for at in calls), _recovery(told, harm))
        for harm, end in zip(harms, begins, strict=True)
    ]


def _recovery(told: History, harm: Harm) -> float | None:
    """Return how long after the end of a fault it took until every client had been told ok again."""
    firsts: dict[str, float] = {}
    for call in told.calls:
        if call.outcome == "ok" and call.told >= harm.end:
            firsts[call.who] = min(firsts.get(call.who, inf), call.told)
    return max(firsts.values()) - harm.end if firsts else None
