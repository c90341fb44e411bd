"""Plots of comparisons."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import Comparison, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, THEIRS = "#d98e04", "#8a97a6"

IsOurs = Callable[[str], bool]


def _panel(axes: "Axes", comparison: Comparison, is_ours: IsOurs) -> None:
    names = list(comparison.values)
    values = list(comparison.values.values())
    bars = axes.barh(names, values, color=[OURS if is_ours(name) else THEIRS for name in names], height=0.7)
    axes.bar_label(bars, [f"{number(value)} {comparison.unit}" for value in values], padding=4, fontsize=9)
    better = "less" if comparison.less_is_better else "more"
    axes.set_title(f"{comparison.name} ({better} is better)", loc="left", fontsize=10, fontweight="bold")
    axes.set_xlim(0, max(values) * 1.18)  # room for the number after the longest bar
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(left=False, labelsize=9)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw(comparisons: list[Comparison], is_ours: IsOurs, path: Path, conditions: str) -> None:
    """Draw a panel for each comparison, with its own scale. The suffix of the path determines the format."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # every worker process imports this module, and matplotlib takes a second

    figure = Figure(figsize=(9, 1.6 * len(comparisons) + 0.8), layout="constrained")
    for axes, comparison in zip(figure.subplots(len(comparisons), squeeze=False).flat, comparisons, strict=True):
        _panel(axes, comparison, is_ours)
    figure.supxlabel(conditions, fontsize=8, color="#555555", x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
