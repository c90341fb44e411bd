"""Numbers and times as text."""

from datetime import datetime

NOTHING = "-"
UNITS = ((86_400 * 3, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"), (1, 1, "s"), (0.001, 0.001, "ms"))


def count(number: float) -> str:
    return f"{number:,.0f}"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:,.2g}"  # noqa: PLR2004


def short(number: float) -> str:
    """Return a number for an axis: 1.5k, 20M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def seconds(length: float | None) -> str:
    if length is None:
        return NOTHING
    for least, size, unit in UNITS:
        if length >= least:
            value = length / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"  # noqa: PLR2004
    return "0 s" if length <= 0 else "under 1 ms"


def mark(length: float) -> str:
    """Return a round length of time, for an axis."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if length >= size and length % size == 0:
            return f"{length / size:,g} {unit}"
    return seconds(length)


def share(part: float | None) -> str:
    """Return a percentage. Only 0 is shown as 0 %, and only 1 as 100 %."""
    if part is None:
        return NOTHING
    if 0 < part < 0.001:  # noqa: PLR2004
        return "under 0.1 %"
    if 0.999 < part < 1:  # noqa: PLR2004
        return "over 99.9 %"
    return f"{part * 100:.3g} %"


def time(moment: datetime | None) -> str:
    return NOTHING if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
