"""The shape of a fault, and the list of them."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from faults.world import World

Harm = Callable[[World, random.Random], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`run` does the harm, returns when it is over, and says in a few words what it was."""

    name: str
    title: str
    stages: tuple[str, ...]
    lasts: float
    run: Harm
    standing: bool = False  # until the end of the round, beside the others


FAULTS: dict[str, Fault] = {}


def fault(
    title: str, *, lasts: float = 0, stages: tuple[str, ...] = ("plain",), standing: bool = False
) -> Callable[[Harm], Harm]:
    """Put a fault on the list, under the name of its function."""

    def add(run: Harm) -> Harm:
        name = run.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, title, stages, lasts, run, standing)
        return run

    return add


def some(dice: random.Random, among: list, most: int | None = None) -> list:
    """Choose one or more."""
    return dice.sample(among, dice.randint(1, min(most or len(among), len(among))))


def names(chosen: list) -> str:
    return ", ".join(each.name for each in chosen)
