"""Axes of charts: scales and their marks."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from math import ceil, floor, log10

TIME_STEPS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
    1_209_600, 2_592_000, 7_776_000, 31_536_000,
)  # fmt: skip
LENGTHS = (0.0001, 0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 36_000, 86_400, 864_000, 8_640_000, 86_400_000)
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to coordinates between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.logarithmic:
            low, high, here = log10(low), log10(high), log10(max(value, low))
        return self.start + (here - low) / (high - low or 1) * (self.end - self.start)


def nice(most: float, marks: int = 4) -> list[float]:
    """Return marks from 0 to the first round number that is at least `most`."""
    if most <= 0:
        return [0, 1]
    raw = most / marks
    size = 10 ** floor(log10(raw))
    step = next(factor * size for factor in (1, 2, 5, 10) if factor * size >= raw * 0.999)
    return [number * step for number in range(ceil(most / step - 1e-9) + 1)]


def nice_lengths(most: float, marks: int = 5) -> list[float]:
    """Return marks for seconds: round numbers of seconds, minutes, hours or days."""
    if most <= 1:
        return nice(most)
    step = next((step for step in TIME_STEPS if most / step <= marks), TIME_STEPS[-1])
    return [float(number * step) for number in range(ceil(most / step - 1e-9) + 1)]


def around(low: float, high: float) -> list[float]:
    """Return at least two marks for a logarithmic scale of durations, from milliseconds to days."""
    first = max((n for n, mark in enumerate(LENGTHS) if mark <= low), default=0)
    last = min((n for n, mark in enumerate(LENGTHS) if mark >= high), default=len(LENGTHS) - 1)
    return [float(mark) for mark in LENGTHS[min(first, last - 1) : last + 1]]


def moments(first: datetime, last: datetime, marks: int = 6) -> list[tuple[datetime, str]]:
    """Return round times between two times, with labels. The first label and the first of a day have the date."""
    seconds = (last - first).total_seconds()
    step = next((step for step in TIME_STEPS if seconds / step <= marks), TIME_STEPS[-1])
    start = datetime.fromtimestamp(ceil(first.timestamp() / step) * step, UTC)
    found: list[datetime] = []
    for number in count():
        moment = start + timedelta(seconds=number * step)
        if moment > last:
            break
        found.append(moment)
    return [(moment, _label(moment, step, is_first=not number)) for number, moment in enumerate(found)]


def _label(moment: datetime, step: int, *, is_first: bool) -> str:
    if step >= DAY:
        return f"{moment:%Y-%m-%d}" if is_first or step >= 90 * DAY else f"{moment:%m-%d}"
    clock = f"{moment:%H:%M:%S}" if step < 60 else f"{moment:%H:%M}"  # noqa: PLR2004
    return f"{moment:%m-%d} {clock}" if is_first or clock in ("00:00", "00:00:00") else clock
