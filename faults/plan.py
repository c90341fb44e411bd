"""The plan: which faults, in which order. A pure function of its seed, so that a red run can be had again."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

ROUND_SECONDS = 45
NONE: Mapping[str, Sequence[str]] = MappingProxyType({})
PAUSES = (1.0, 4.0)  # seconds between two faults: some come before the last one is forgotten


@dataclass(frozen=True, slots=True)
class Step:
    """A fault, the pause before it, and the seed of its own dice: whom it meets, and for how long."""

    fault: str
    pause: float
    seed: int


@dataclass(frozen=True, slots=True)
class Round:
    """A fresh world of one kind, its faults, and the end: everything healed, drained and checked."""

    number: int
    stage: str
    seed: int
    steps: tuple[Step, ...]

    def describe(self) -> str:
        faults = ", ".join(f"{step.fault} (after {step.pause:.1f} s)" for step in self.steps)
        return f"round {self.number}, {self.stage}: {faults}"


class Deck:
    """Cards in random order; all have been on the table before one comes again."""

    def __init__(self, cards: Sequence[str], dice: random.Random) -> None:
        self._cards, self._dice, self._left = list(cards), dice, list[str]()

    def draw(self) -> str:
        if not self._left:
            self._left = self._dice.sample(self._cards, len(self._cards))
        return self._left.pop()


def make(
    seed: int, seconds: float, stages: Mapping[str, Mapping[str, float]], always: Mapping[str, Sequence[str]] = NONE
) -> list[Round]:
    """Plan rounds for about so many seconds.

    `stages`: the faults of each stage, and how long one lasts; `always`: those that begin its rounds.
    """
    dice = random.Random(f"plan {seed}")
    decks = {stage: Deck(sorted(faults), dice) for stage, faults in stages.items()}
    order = Deck(sorted(stages), dice)
    count = max(1, round(seconds / ROUND_SECONDS))
    rounds: list[Round] = []
    for number in range(1, count + 1):
        stage = order.draw()
        first = [_step(fault, dice) for fault in always.get(stage, ())]
        steps = _steps(decks[stage], stages[stage], seconds / count, dice)
        rounds.append(Round(number, stage, dice.randrange(2**31), (*first, *steps)))
    return rounds


def _steps(deck: Deck, lasts: Mapping[str, float], seconds: float, dice: random.Random) -> list[Step]:
    steps: list[Step] = []
    while seconds > 0:
        step = _step(deck.draw(), dice)
        steps.append(step)
        seconds -= step.pause + lasts[step.fault]
    return steps


def _step(fault: str, dice: random.Random) -> Step:
    return Step(fault, round(dice.uniform(*PAUSES), 1), dice.randrange(2**31))
