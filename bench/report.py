"""Results of benchmarks, as a table."""

import sys
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of several contestants."""

    name: str
    unit: str
    values: dict[str, float]
    less_is_better: bool = False

    def rows(self, ours: str) -> list[Row]:
        """Return a row for each contestant; ours is compared to the best of the others."""
        best = min if self.less_is_better else max
        others = {name: value for name, value in self.values.items() if name != ours}
        rows = [Row(f"{self.name}: {name}", value, self.unit) for name, value in self.values.items()]
        if ours not in self.values or not others:
            return rows
        rival = best(others, key=lambda name: others[name])
        ratio = self.values[ours] / others[rival]
        return [replace(row, reference=rival, ratio=ratio) if row.name.endswith(f": {ours}") else row for row in rows]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def show(rows: list[Row]) -> bool:
    table = Table("measured", "value", "unit", "compared to", "ratio", "target", "")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = "" if not row.target else ("[green]met[/]" if row.met else "[red]missed[/]")
        table.add_row(row.name, number(row.value), row.unit, row.reference, ratio, row.target, verdict)
    progress("")
    Console(width=130 if not sys.stdout.isatty() else None).print(table)
    return all(row.met for row in rows)
