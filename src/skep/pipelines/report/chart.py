"""Charts as SVG, in the colours of the page. Tooltips have the values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from skep.pipelines.report.axis import Scale, around, moments, nice, nice_lengths
from skep.pipelines.report.markup import Markup, el, joined, short
from skep.pipelines.report.words import mark, seconds, time

WIDTH, HEIGHT = 560.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 10.0, 12.0, 26.0
NAMES = 190.0  # width of the names of bars
BAR = 24.0
FEW = 40  # points; lines with more have no dots
LETTERS = 27  # of a name; longer names do not fit beside a bar
Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """The values of a line; None if a value is unknown. `colour` 0 is for the sum of other series."""

    name: str
    values: Sequence[float | None]
    colour: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Times at equal distances; each is the beginning of a step of `size` seconds."""

    times: Sequence[datetime]
    size: int

    def between(self, first: float, last: float) -> Scale:
        """Return the scale of these times between two coordinates."""
        return Scale(self.times[0].timestamp(), self.times[-1].timestamp() + self.size, first, last)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, or dots on a line, with a label after it and a tooltip."""

    name: str
    values: Sequence[float]
    label: str
    tooltip: str


def figure(title: str, unit: str, picture: Markup, legend: Sequence[Series] = ()) -> Markup:
    entries = [el("li", el("span", class_=f"swatch s{each.colour}"), el("bdi", short(each.name))) for each in legend]
    return el(
        "figure",
        el("figcaption", el("h3", title), el("span", unit, class_="unit")),
        el("div", picture, class_="scroll"),
        el("ul", *entries, class_="legend") if entries else None,
    )


def nothing(title: str, why: Markup) -> Markup:
    return el("figure", el("figcaption", el("h3", title)), el("p", why, class_="empty"))


def lines(title: str, unit: str, steps: Steps, series: Sequence[Series], words: Words) -> Markup:
    """Draw lines over time. A point is in the middle of its step."""
    highest = max((value for each in series for value in each.values if value is not None), default=0)
    marks = nice_lengths(highest) if words is seconds else nice(highest)
    x, y = steps.between(LEFT, WIDTH - RIGHT), Scale(0, marks[-1], HEIGHT - BOTTOM, TOP)
    places = [x.at(moment.timestamp() + steps.size / 2) for moment in steps.times]
    drawn = [*_grid(x, y, marks, words, steps), *(_line(each, places, y) for each in series)]
    return figure(title, unit, _plot(title, [*drawn, *_tooltips(x, steps, series, words)]), series)


def stacks(title: str, unit: str, steps: Steps, series: Sequence[Series], words: Words) -> Markup:
    """Draw columns over time, with the series stacked."""
    columns = [[each.values[number] or 0 for each in series] for number in range(len(steps.times))]
    marks = nice(max(map(sum, columns), default=0))
    x, y = steps.between(LEFT, WIDTH - RIGHT), Scale(0, marks[-1], HEIGHT - BOTTOM, TOP)
    drawn = _grid(x, y, marks, words, steps)
    for moment, column in zip(steps.times, columns, strict=True):
        left, right = x.at(moment.timestamp()), x.at(moment.timestamp() + steps.size)
        width = max(right - left - 0.6, 0.6)
        for each, value, top in zip(series, column, accumulate(column), strict=True):
            height = y.at(top - value) - y.at(top)
            box = el("rect", class_=f"f{each.colour}", x=left, y=y.at(top), width=width, height=height)
            drawn += [box] if value else []
    return figure(title, unit, _plot(title, [*drawn, *_tooltips(x, steps, series, words)]), series)


def bars(title: str, unit: str, rows: Sequence[Bar], words: Words) -> Markup:
    """Draw a bar for each row, with its name before it and its label after it."""
    marks = nice(max((row.values[0] for row in rows), default=0))
    x = Scale(0, marks[-1], NAMES, WIDTH - 64)
    drawn: list[Markup] = []
    for number, row in enumerate(rows):
        top, end = TOP + number * BAR, x.at(row.values[0])
        drawn += [
            _name(row, top),
            el("rect", class_="f1", x=NAMES, y=top + 4, width=max(end - NAMES, 1.0), height=BAR - 8, rx=2),
            el("text", row.label, x=end + 5, y=top + BAR / 2 + 4, class_="value"),
            _cover(row, top),
        ]
    return figure(title, unit, _rows(title, len(rows), x, marks, words, drawn))


def lengths(title: str, unit: str, rows: Sequence[Bar], names: Sequence[str]) -> Markup:
    """Draw the durations of each row as dots on a line, on a logarithmic scale."""
    known = [value for row in rows for value in row.values if value > 0]
    marks = around(min(known, default=0.001), max(known, default=1))
    x = Scale(marks[0], marks[-1], NAMES + 8, WIDTH - 26, logarithmic=True)
    drawn: list[Markup] = []
    for number, row in enumerate(rows):
        top = TOP + number * BAR
        middle, places = top + BAR / 2, [x.at(value) for value in row.values]
        drawn += [_name(row, top), el("line", class_="span", x1=places[0], x2=places[-1], y1=middle, y2=middle)]
        dots = [el("circle", class_=f"f{3 - n}", cx=place, cy=middle, r=4.5) for n, place in enumerate(places)]
        drawn += [*reversed(dots), _cover(row, top)]
    legend = [Series(name, (), 3 - number) for number, name in enumerate(names)]
    return figure(title, unit, _rows(title, len(rows), x, marks, mark, drawn), legend)


def _line(series: Series, places: Sequence[float], y: Scale) -> Markup:
    """Draw a line with gaps for unknown values. A point between two gaps is a dot."""
    path, values = "", [None, *series.values, None]
    dots: list[Markup] = []
    for place, before, value, after in zip(places, values, values[1:], values[2:], strict=False):
        if value is None:
            continue
        path += f"{'M' if before is None else 'L'}{place:.1f} {y.at(value):.1f}"
        if len(places) <= FEW or (before is None and after is None):
            dots.append(el("circle", class_=f"f{series.colour}", cx=place, cy=y.at(value), r=2.4))
    return joined([el("path", class_=f"l{series.colour}", d=path), *dots])


def _grid(x: Scale, y: Scale, marks: Sequence[float], words: Words, steps: Steps) -> list[Markup]:
    parts: list[Markup] = []
    for value in marks:
        at = y.at(value)
        parts.append(el("line", class_="grid" if value else "axis", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at))
        label = mark(value) if words is seconds else words(value)
        parts.append(el("text", label, x=LEFT - 6, y=at + 4, class_="end"))
    for moment, label in moments(steps.times[0], steps.times[-1] + timedelta(seconds=steps.size)):
        at = x.at(moment.timestamp())
        parts.append(el("line", class_="axis", x1=at, x2=at, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 4))
        parts.append(el("text", label, x=min(max(at, LEFT + 12), WIDTH - 24), y=HEIGHT - 8, class_="middle"))
    return parts


def _tooltips(x: Scale, steps: Steps, series: Sequence[Series], words: Words) -> list[Markup]:
    """Return a transparent area for each step, whose tooltip has all values."""
    parts: list[Markup] = []
    for number, moment in enumerate(steps.times):
        known = ((each.name, each.values[number]) for each in series)
        values = [f"{short(name, LETTERS)}: {words(value)}" for name, value in known if value is not None]
        left, right = x.at(moment.timestamp()), x.at(moment.timestamp() + steps.size)
        tooltip = el("title", " · ".join([time(moment), *values]))
        height = HEIGHT - BOTTOM - TOP
        parts.append(el("rect", tooltip, class_="over", x=left, y=TOP, width=right - left, height=height))
    return parts


def _name(row: Bar, top: float) -> Markup:
    return el("text", short(row.name, LETTERS), x=NAMES - 8, y=top + BAR / 2 + 4, class_="end name")


def _cover(row: Bar, top: float) -> Markup:
    return el("rect", el("title", row.tooltip), class_="over", x=0, y=top, width=WIDTH, height=BAR)


def _rows(title: str, number: int, x: Scale, marks: Sequence[float], words: Words, drawn: list[Markup]) -> Markup:
    bottom = TOP + number * BAR + 4
    grid: list[Markup] = []
    for value in marks:
        at = x.at(value)
        grid.append(el("line", class_="grid", x1=at, x2=at, y1=TOP - 4, y2=bottom))
        grid.append(el("text", words(value), x=at, y=bottom + 15, class_="middle"))
    return _plot(title, [*grid, *drawn], bottom + 22)


def _plot(title: str, parts: list[Markup], height: float = HEIGHT) -> Markup:
    return el("svg", *parts, viewbox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=title)
