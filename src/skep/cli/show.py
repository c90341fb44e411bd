"""How values are shown: lines and tables for people, JSON for programs. Exact values are in the JSON only."""

import errno
import json
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from skep.message import Message

ANY_WIDTH = 10_000_000  # a pipe has no width: nothing is wrapped or cut off there
SHOWN_LANES = 100

Cell = str | int | float | datetime | Text | None


class Output(Console):
    """Standard output. A reader that has gone away is an ordinary error, for the commands have things to put back."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = ANY_WIDTH

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads the output")


def say(text: str | Text) -> None:
    """Print one line of any length."""
    Output().print(text, soft_wrap=True)


def show_table(headers: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table."""
    output = Output()
    output.print(make_table(headers, rows, framed=output.is_terminal))


def make_table(
    headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, framed: bool = True, cut: bool = False
) -> Table:
    """Numbers have separators, times are ages; what is too wide is cut, or goes on in the next line."""
    columns = (Column(header, overflow="ellipsis" if cut else "fold", no_wrap=cut) for header in headers)
    table = Table(*columns, box=box.SIMPLE_HEAD if framed else None, show_edge=False, pad_edge=False)
    numbers: set[int] = set()
    for row in rows:
        numbers.update(place for place, cell in enumerate(row) if isinstance(cell, int | float))
        table.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row))
    for place in numbers:
        table.columns[place].justify = "right"
    return table


def _cell(cell: str | float | datetime | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, datetime):
        return f"{age(cell)} ago"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else one_line(cell)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def age(time: datetime) -> str:
    """Return how long ago that was."""
    return span((datetime.now(UTC) - time).total_seconds())


def span(length: float) -> str:
    """Return a length of time, in the largest unit that is not too coarse."""
    seconds = max(0, int(length))
    for unit, size, largest in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < largest:
            return f"{seconds // size} {unit}"
    return f"{seconds // 86400:,} d"


def one_line(text: str) -> str:
    """Write out what would break the line, or tell the terminal to do something."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def message_line(message: Message, when: str) -> Text:
    place = f"{one_line(message.queue)}/{one_line(message.partition)} #{message.offset}"
    line = Text.assemble((place, "cyan"), "  ", (when, "dim"), "  ", one_line(compact(message.payload)))
    if message.headers:
        line.append(f"  headers {one_line(compact(message.headers))}", "dim")
    if message.attempt > 1:
        line.append(f"  attempt {message.attempt}", "yellow")
    return line


def compact(value: object) -> str:
    """Return JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def show_json(value: object) -> None:
    """Print one JSON document."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def as_dict(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields of a dataclass or a named tuple; values inside stay as they are."""
    names: Iterable[str] = getattr(value, "_fields", None) or (field.name for field in fields(value))
    return {name: getattr(value, name) for name in names}


def _plain(value: object) -> object:
    if is_dataclass(value):
        return as_dict(cast("Any", value))
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
