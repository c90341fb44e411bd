"""Small charts of letters: a line over time, a bar for an amount."""

from collections.abc import Sequence
from math import ceil

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float]) -> str:
    """Draw values over time; the lowest step is nothing at all, the highest the largest of them."""
    most = max(values, default=0)
    return "".join(LEVELS[ceil(value * (len(LEVELS) - 1) / most) if most > 0 else 0] for value in values)


def bar(value: float, most: float, width: int = 20) -> str:
    """Draw an amount beside the largest one; whatever there is can be seen."""
    eighths = max(1, round(value * width * 8 / most)) if value > 0 else 0
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def buckets(values: Sequence[float], width: int) -> list[float]:
    """Return at most so many values: the mean of each stretch of them."""
    size = max(1, ceil(len(values) / width))
    stretches = (values[start : start + size] for start in range(0, len(values), size))
    return [sum(stretch) / len(stretch) for stretch in stretches]
