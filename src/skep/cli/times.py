"""Durations and times as people write them: 90, 30m, 1.5h, 2d; 2026-01-31 12:00."""

import re
from datetime import UTC, datetime, timedelta

from skep.cli.show import one_line
from skep.errors import InvalidArgument

UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
DURATION_HINT = "write 90, 30m, 2h or 1d"


def parse_duration(text: str) -> timedelta:
    """Parse a duration. A number without a unit is seconds."""
    found = DURATION.fullmatch(text.strip().lower())
    if not found or (found[2] or "s") not in UNITS:
        raise InvalidArgument(f'"{one_line(text)}" is not a duration', hint=DURATION_HINT)
    try:
        return timedelta(seconds=float(found[1]) * UNITS[found[2] or "s"])
    except OverflowError:
        raise InvalidArgument(f'the duration "{one_line(text)}" is too long', hint=DURATION_HINT) from None


def parse_due_time(text: str | None) -> datetime | None:
    """Parse a time that may be in the future. A time without a zone is local time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        hint = 'write "2030-01-31 12:00" or 2030-01-31T12:00Z; for a duration use --delay'
        raise InvalidArgument(f'"{one_line(text)}" is not a time', hint=hint) from None


def parse_time(text: str | None) -> datetime | None:
    """Parse a time, or an age such as 2h. A time without a zone is local time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.now(UTC) - parse_duration(text)
    except (InvalidArgument, OverflowError):
        message = f'"{one_line(text)}" is neither a time nor an age'
        raise InvalidArgument(message, hint='write 2h, "2026-01-31 12:00" or 2026-01-31T12:00Z') from None
