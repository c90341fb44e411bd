"""Output of commands: lines and tables for people, JSON for programs. Tables round; JSON has the exact values."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from rich.text import Text

from skep.message import Message

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_PARTITIONS = 100

Cell = str | int | float | datetime | Text | None


def say(text: str | Text) -> None:
    """Print one line of any length."""
    from skep.cli.output import Output

    Output().print(text, soft_wrap=True)


@cache
def error_console() -> "Console":
    """Return the console on standard error, for notes, questions, progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print one dim line on standard error."""
    error_console().print(text, style="dim", markup=False)


def show_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table."""
    from skep.cli.output import Output, make_table

    output = Output()
    output.print(make_table(headers, rows, framed=output.is_terminal))


def show_json(value: object) -> None:
    """Print one JSON document."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=_jsonable))


def compact(value: object) -> str:
    """Return JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=_jsonable)


def as_dict(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields of a dataclass or a named tuple without converting their values."""
    names: Iterable[str] = getattr(value, "_fields", None) or (field.name for field in fields(value))
    return {name: getattr(value, name) for name in names}


def _jsonable(value: object) -> object:
    if is_dataclass(value):
        return as_dict(cast("Any", value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def age(time: datetime) -> str:
    """Return the time that has passed since then."""
    return duration((datetime.now(UTC) - time).total_seconds())


def duration(length: float) -> str:
    """Return a number of seconds in the largest unit that is not too coarse."""
    seconds = max(0, int(length))
    for unit, size, largest in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < largest:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86400:,} d"


def clock(time: datetime) -> str:
    """Return the local date and time."""
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def one_line(text: str) -> str:
    """Escape line breaks and control characters."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def message_line(message: Message, when: str) -> Text:
    address = f"{one_line(message.queue)}/{one_line(message.partition)} #{message.offset}"
    line = Text.assemble((address, "cyan"), "  ", (when, "dim"), "  ", one_line(compact(message.payload)))
    if message.headers:
        line.append(f"  headers {one_line(compact(message.headers))}", "dim")
    if message.attempt > 1:
        line.append(f"  attempt {message.attempt}", "yellow")
    return line
