"""One round: a new world, its faults in order, the end, and the verdict."""

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
from faults.history import History, Injection
from faults.plan import Round
from faults.world import World

log = logging.getLogger("faults")

WARM_UP = 2  # seconds of load before the first fault
PATIENCE = 90  # seconds after the last fault until all messages must be completed


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault of a round: the number of calls until the next fault, and the time until all clients had recovered."""

    fault: str
    text: str
    operations: int
    recovery: float | None


@dataclass(slots=True)
class Verdict:
    """The result of a round."""

    round: int
    stage: str
    seconds: float
    operations: int
    messages: int
    drained: float
    lost_by_contract: int = 0  # losses before a crash that a setting allows
    struck: list[Struck] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


async def run(planned: Round, world: World, patience: float = PATIENCE) -> Verdict:
    begin = time.monotonic()
    try:
        await world.start()
        await asyncio.sleep(WARM_UP)
        world.record_memory()
        standing: list[asyncio.Task[None]] = []
        for step in planned.steps:
            await asyncio.sleep(step.pause)
            injection = _inject(world, step.fault, random.Random(step.seed))
            if FAULTS[step.fault].standing:
                standing.append(asyncio.create_task(injection))
            else:
                await injection
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
    verdict = check_round(planned, world.directory, time.monotonic() - begin)
    verdict.drained = drained
    verdict.violations += [Violation(text, rule="no process fails") for text in world.unexpected()]
    return verdict


async def _inject(world: World, name: str, rng: random.Random) -> None:
    log.info("  %s ...", name)
    call = world.injections.invoke("injection", fault=name)
    try:
        text = await FAULTS[name].run(world, rng)
    except psycopg.Error as error:  # another fault interrupted it
        text = f"interrupted: {error}"
    world.injections.returned(call, "ok", text=text)
    log.info("  %s: %s", name, text)


def check_round(planned: Round, directory: Path, seconds: float) -> Verdict:
    """Check the histories and the final state of a round."""
    events = history.read(directory)
    setup, found = state.load(directory)
    messages = sum(head.last + 1 for head in found.heads.values())
    verdict = Verdict(planned.number, planned.stage, seconds, events.operations, messages, 0)
    verdict.violations = check(setup, events, found)
    verdict.lost_by_contract = lost_by_contract(Index(setup, events, found))
    verdict.struck = _struck(events)
    return verdict


def _struck(events: History) -> list[Struck]:
    injections = sorted(events.injections, key=lambda injection: injection.begin)
    begins = [injection.begin for injection in injections[1:]] + [inf]
    calls = sorted(call.invoked for call in events.calls)
    return [
        Struck(
            injection.fault,
            injection.text,
            sum(injection.begin <= at < end for at in calls),
            _recovery(events, injection),
        )
        for injection, end in zip(injections, begins, strict=True)
    ]


def _recovery(events: History, injection: Injection) -> float | None:
    """Return the time from the end of a fault until a call of every client succeeded again."""
    firsts: dict[str, float] = {}
    for call in events.calls:
        if call.outcome == "ok" and call.returned >= injection.end:
            firsts[call.who] = min(firsts.get(call.who, inf), call.returned)
    return max(firsts.values()) - injection.end if firsts else None
