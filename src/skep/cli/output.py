"""Standard output and tables, drawn by Rich. Loaded when a command prints, because `rich.console` loads slowly."""

import errno
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from skep.cli.show import Cell, age, one_line

ANY_WIDTH = 10_000_000  # lines in a pipe are neither wrapped nor cut


class Output(Console):
    """Standard output. A closed pipe raises BrokenPipeError, so that commands can clean up."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = ANY_WIDTH

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader of the output has closed it")


def make_table(
    headers: Sequence[str], rows: Iterable[Sequence[Cell]], *, framed: bool = True, cut: bool = False
) -> Table:
    """Return a table with thousands separators and ages. Text that is too wide is cut or wrapped."""
    columns = (Column(header, overflow="ellipsis" if cut else "fold", no_wrap=cut) for header in headers)
    table = Table(*columns, box=box.SIMPLE_HEAD if framed else None, show_edge=False, pad_edge=False)
    numbers: set[int] = set()
    for row in rows:
        numbers.update(column for column, cell in enumerate(row) if isinstance(cell, int | float))
        table.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row))
    for column in numbers:
        table.columns[column].justify = "right"
    return table


def _cell(cell: str | float | datetime | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, datetime):
        return f"{age(cell)} ago"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else one_line(cell)
