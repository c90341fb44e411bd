"""Small charts made of characters: a line over time, and a bar for an amount."""

from collections.abc import Sequence
from math import ceil

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float]) -> str:
    """Draw values over time. The lowest level is zero, and the highest is the largest value."""
    largest = max(values, default=0)
    return "".join(LEVELS[ceil(value * (len(LEVELS) - 1) / largest) if largest > 0 else 0] for value in values)


def bar(value: float, largest: float, width: int = 20) -> str:
    """Draw a bar whose length is relative to the largest value. A value above zero has at least one eighth."""
    eighths = max(1, round(value * width * 8 / largest)) if value > 0 else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def buckets(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` values, each the mean of a bucket of neighbouring values."""
    size = max(1, ceil(len(values) / width))
    parts = (values[start : start + size] for start in range(0, len(values), size))
    return [sum(part) / len(part) for part in parts]
