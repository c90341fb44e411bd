"""What a benchmark says, as a table for people."""

import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    reference: str = ""
    ratio: float | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else ""

    @property
    def met(self) -> bool:
        if self.ratio is None:
            return True
        return (self.at_least is None or self.ratio >= self.at_least) and (
            self.at_most is None or self.ratio <= self.at_most
        )


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def show(rows: list[Row]) -> bool:
    table = Table("measured", "value", "unit", "compared to", "ratio", "target", "")
    for row in rows:
        number = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.2f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = "" if not row.target else ("[green]met[/]" if row.met else "[red]missed[/]")
        table.add_row(row.name, number, row.unit, row.reference, ratio, row.target, verdict)
    progress("")
    Console(width=130 if not sys.stdout.isatty() else None).print(table)
    return all(row.met for row in rows)
