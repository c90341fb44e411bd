"""The charts of the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from skep.pipelines.report import chart
from skep.pipelines.report.chart import Bar, Series, Steps
from skep.pipelines.report.markup import Markup, el, short
from skep.pipelines.report.result import Result, Row
from skep.pipelines.report.story import name_of
from skep.pipelines.report.words import count, counted, mark, seconds, share
from skep.pipelines.report.words import short as number

LINES, BARS = 6, 12
FANOUT = {
    "done_by_all": ("completed by all groups", 3),
    "owed": ("pending", 1),
    "for_nobody": ("read by no group", 0),
}
SAMPLES = el(
    "span", "No samples were taken in this time. ", el("code", "skep serve"), " and ", el("code", "skep upkeep"),
    " take them.",
)  # fmt: skip
NOTHING = el("span", "There are no messages.")


@dataclass(frozen=True, slots=True)
class OverTime:
    """A chart with a line for each name. `gaps` is the value of a step without a row; None: it is unknown."""

    title: str
    unit: str
    column: str
    name: Callable[[Row], str]
    words: Callable[[float], str]
    gaps: float | None
    why: Markup  # shown if there are no rows


def figures(result: Result) -> Markup:
    if not result.messages and not result.groups:
        return el("section", class_="charts")
    drawn = [
        _throughput(result), _lag(result), _time_in_queue(result), _time_over_time(result), _fanout(result),
        _errors(result), _hot(result), _consumption(result),
    ]  # fmt: skip
    return el("section", *drawn, class_="charts")


def _throughput(result: Result) -> Markup:
    about = OverTime(
        "Throughput",
        "messages pushed per second, by queue",
        "per_second",
        lambda row: row["queue"],
        number,
        0.0,
        NOTHING,
    )
    return _over_time(about, result.tables["throughput"], result.steps["messages"])


def _consumption(result: Result) -> Markup:
    unit = "messages completed per second, by group"
    about = OverTime("Consumption", unit, "per_second", name_of, number, 0.0, SAMPLES)
    return _over_time(about, result.tables["consumption"], result.steps["samples"])


def _lag(result: Result) -> Markup:
    rows = result.tables["lag"]
    if rows and not any(row["most"] for row in rows):
        return chart.nothing("Lag", el("span", "No group had a lag in any sample."))
    about = OverTime("Lag", "maximum number of messages, by group", "most", name_of, number, None, SAMPLES)
    return _over_time(about, rows, result.steps["samples"])


def _time_over_time(result: Result) -> Markup:
    unit = "from push to ack, 95th percentile, by group"
    about = OverTime("Time in queue over time", unit, "p95", name_of, seconds, None, _no_log(result))
    return _over_time(about, result.tables["time_in_queue_over_time"], result.steps["leases"])


def _no_log(result: Result) -> Markup:
    if not result.unlogged:
        return el("span", "No lease ended in this time.")
    command = f"skep queue configure {short(result.unlogged[0])} lease_log_seconds=86400"
    return el("span", "Leases are not logged. To log them from now on: ", el("code", command))


def _over_time(about: OverTime, rows: Sequence[Row], step: int) -> Markup:
    """Draw a line for each of the largest series, and one for the sum of the others if a sum makes sense."""
    if not rows:
        return chart.nothing(about.title, about.why)
    times = _times(rows, step)
    series: dict[str, dict[datetime, float]] = {}
    for row in rows:
        series.setdefault(about.name(row), {})[row["bucket"]] = float(row[about.column])
    largest = sorted(series, key=lambda each: -max(series[each].values()))
    named = (
        sorted(series) if len(series) <= LINES else largest
    )  # so that a name has the same colour in every chart, if there are enough colours
    shown = [
        Series(each, [series[each].get(moment, about.gaps) for moment in times], named.index(each) + 1)
        for each in largest[:LINES]
    ]
    rest, unit = largest[LINES:], about.unit
    if rest and about.gaps is not None:
        totals = [sum(series[each].get(moment, 0.0) for each in rest) for moment in times]
        shown.append(Series(f"{counted(len(rest), 'other')} together", totals, 0))
    elif rest:
        unit += f"; the {LINES} largest of {len(largest)}"
    return chart.lines(about.title, unit, Steps(times, step), shown, about.words)


def _times(rows: Sequence[Row], step: int) -> list[datetime]:
    first, last = min(row["bucket"] for row in rows), max(row["bucket"] for row in rows)
    return [first + timedelta(seconds=n * step) for n in range(int((last - first).total_seconds()) // step + 1)]


def _time_in_queue(result: Result) -> Markup:
    title, rows = "Time in queue", result.tables["time_in_queue"]
    if not rows:
        return chart.nothing(title, _no_log(result))
    drawn = [
        Bar(name_of(row), (row["p50"], row["p95"], row["p99"]), "", f"{name_of(row)}: {_percentiles(row)}")
        for row in rows[:BARS]
    ]
    return chart.lengths(title, "from push to ack, by group, logarithmic", drawn, ("50 %", "95 %", "99 %"))


def _percentiles(row: Row) -> str:
    parts = (f"{name} % within {seconds(row[key])}" for name, key in ((50, "p50"), (95, "p95"), (99, "p99")))
    return f"{', '.join(parts)}, of {counted(row['messages'], 'message')}"


def _fanout(result: Result) -> Markup:
    title, rows, step = "Fan-out completion", result.tables["fanout"], result.steps["messages"]
    if not rows:
        return chart.nothing(title, NOTHING)
    times = _times(rows, step)
    index = {moment: n for n, moment in enumerate(times)}
    totals = {name: [0.0] * len(times) for name in FANOUT}
    for row in rows:
        for name, values in totals.items():
            values[index[row["bucket"]]] += row[name]
    series = [Series(FANOUT[name][0], values, FANOUT[name][1]) for name, values in totals.items()]
    unit = f"messages, by push time, in steps of {mark(step)}"
    return chart.stacks(title, unit, Steps(times, step), series, number)


def _errors(result: Result) -> Markup:
    title, rows = "Dead letters by error", result.tables["errors"]
    if not rows:
        return chart.nothing(title, el("span", "No message became a dead letter."))
    letters: dict[str, int] = {}
    for row in rows:
        letters[row["fingerprint"]] = letters.get(row["fingerprint"], 0) + row["letters"]
    most = sorted(letters, key=lambda text: -letters[text])[:BARS]
    drawn = [Bar(text, (letters[text],), count(letters[text]), text) for text in most]
    return chart.bars(title, "dead letters, by error without ids, times and numbers", drawn, number)


def _hot(result: Result) -> Markup:
    rows = sorted(result.tables["hot_partitions"], key=lambda row: -row["messages"])[:BARS]
    if not rows:
        return chart.nothing("Hot partitions", NOTHING)
    drawn: list[Bar] = []
    for row in rows:
        name = f"{short(row['queue'])} / {short(row['partition'])}"
        tooltip = f"{name}: {counted(row['messages'], 'message')}, {share(row['share'])} of the queue"
        drawn.append(Bar(name, (row["messages"],), share(row["share"]), tooltip))
    return chart.bars("Hot partitions", "messages, and their share of the queue", drawn, number)
