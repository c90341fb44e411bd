"""The type of a fault, and the list of all faults."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from faults.world import World

Inject = Callable[[World, random.Random], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. `run` injects it, returns at its end, and describes it in a few words."""

    name: str
    title: str
    stages: tuple[str, ...]
    lasts: float
    run: Inject
    standing: bool = False  # lasts until the end of the round, during other faults


FAULTS: dict[str, Fault] = {}


def fault(
    title: str, *, lasts: float = 0, stages: tuple[str, ...] = ("plain",), standing: bool = False
) -> Callable[[Inject], Inject]:
    """Add a fault to the list, under the name of its function."""

    def add(run: Inject) -> Inject:
        name = run.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, title, stages, lasts, run, standing)
        return run

    return add


def some(rng: random.Random, among: list, most: int | None = None) -> list:
    """Return one or more random elements."""
    return rng.sample(among, rng.randint(1, min(most or len(among), len(among))))


def names(chosen: list) -> str:
    return ", ".join(each.name for each in chosen)
