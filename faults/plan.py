"""The plan: the faults and their order. It depends only on its seed, so that a failed run can be repeated."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

ROUND_SECONDS = 45
NONE: Mapping[str, Sequence[str]] = MappingProxyType({})
PAUSES = (1.0, 4.0)  # seconds between two faults; short ones, so that some faults overlap with recovery


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, the pause before it, and the seed of its random choices."""

    fault: str
    pause: float
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """A new world of one stage, and its faults. At the end everything is healed, drained and checked."""

    number: int
    stage: str
    seed: int
    steps: tuple[Step, ...]

    def describe(self) -> str:
        faults = ", ".join(f"{step.fault} (after {step.pause:.1f} s)" for step in self.steps)
        return f"round {self.number}, {self.stage}: {faults}"


class Deck:
    """Draws items in random order; every item is drawn before one is drawn again."""

    def __init__(self, items: Sequence[str], rng: random.Random) -> None:
        self._items, self._rng, self._left = list(items), rng, list[str]()

    def draw(self) -> str:
        if not self._left:
            self._left = self._rng.sample(self._items, len(self._items))
        return self._left.pop()


def make(
    seed: int, seconds: float, stages: Mapping[str, Mapping[str, float]], always: Mapping[str, Sequence[str]] = NONE
) -> list[Round]:
    """Plan rounds for about this many seconds.

    `stages`: the faults of each stage and their durations; `always`: the faults that begin each round of a stage.
    """
    rng = random.Random(f"plan {seed}")
    decks = {stage: Deck(sorted(faults), rng) for stage, faults in stages.items()}
    order = Deck(sorted(stages), rng)
    count = max(1, round(seconds / ROUND_SECONDS))
    rounds: list[Round] = []
    for number in range(1, count + 1):
        stage = order.draw()
        first = [_step(fault, rng) for fault in always.get(stage, ())]
        steps = _steps(decks[stage], stages[stage], seconds / count, rng)
        rounds.append(Round(number, stage, rng.randrange(2**31), (*first, *steps)))
    return rounds


def _steps(deck: Deck, lasts: Mapping[str, float], seconds: float, rng: random.Random) -> list[Step]:
    steps: list[Step] = []
    while seconds > 0:
        step = _step(deck.draw(), rng)
        steps.append(step)
        seconds -= step.pause + lasts[step.fault]
    return steps


def _step(fault: str, rng: random.Random) -> Step:
    return Step(fault, round(rng.uniform(*PAUSES), 1), rng.randrange(2**31))
