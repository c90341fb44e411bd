"""The tables of the report."""

from collections.abc import Sequence

from skep.pipelines.report.markup import Markup, el, short
from skep.pipelines.report.result import Result, Row
from skep.pipelines.report.words import NOTHING, count, rate, seconds, share, time

ROWS = 50
TIMES = ("p50", "p95", "p99", "waited_p95", "held_p95")


class Number(str):
    """A number that has been formatted."""

    __slots__ = ()


def tables(result: Result) -> list[Markup]:
    return [table for table in (_queues(result), _groups(result), _dead_letters(result), _partitions(result)) if table]


def _table(title: str, file: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup | None:
    """Return a table, with numbers aligned right. Rows that are not shown are in the file."""
    if not rows:
        return None
    sides = ["number" if isinstance(cell, int | Number) else None for cell in rows[0]]
    head = el("tr", *(el("th", name, scope="col", class_=side) for name, side in zip(heads, sides, strict=True)))
    body = [el("tr", *map(_cell, row, sides)) for row in rows[:ROWS]]
    left = len(rows) - ROWS
    more = el("p", f"{count(left)} more rows are in {file}.parquet.", class_="unit") if left > 0 else None
    table = el("table", el("thead", head), el("tbody", *body))
    return el("section", el("h2", title), el("div", table, class_="scroll"), more)


def _cell(value: object, side: str | None) -> Markup:
    if isinstance(value, int):
        return el("td", count(value), class_=side)
    return el("td", value if isinstance(value, Markup | Number) else el("bdi", short(str(value))), class_=side)


def _queues(result: Result) -> Markup | None:
    busiest: dict[str, Row] = {}
    for row in result.tables["throughput"]:
        if row["per_second"] > busiest.get(row["queue"], {"per_second": -1})["per_second"]:
            busiest[row["queue"]] = row
    rows = [
        (
            row["queue"], row["messages"], row["partitions"], Number(rate(busiest[row["queue"]]["per_second"])),
            time(busiest[row["queue"]]["bucket"]), row["largest_partition"], Number(share(row["largest_share"])),
            Number(f"{row['skew']:,.3g}"), Number(f"{abs(row['gini']):.2f}"),
        )
        for row in sorted(result.tables["skew"], key=lambda row: -row["messages"])
    ]  # fmt: skip
    heads = (
        "queue", "messages", "partitions", "busiest, messages/s", "at", "largest partition", "its share",
        "times the average", "Gini",
    )  # fmt: skip
    return _table("Queues", "skew", heads, rows)


def _groups(result: Result) -> Markup | None:
    rows: list[Sequence[object]] = []
    for group in sorted(result.groups, key=lambda group: -group["lag"]):
        key = (group["queue"], group["group_name"])
        done, times, leases = (result.of(name, *key) for name in ("fanout_groups", "time_in_queue", "deliveries"))
        oldest = group["oldest_pending_at"]
        age = None if oldest is None else (result.made_at - oldest).total_seconds()
        lengths = [Number(seconds(times[name]) if times else NOTHING) for name in TIMES]
        rows.append(
            (
                group["group_name"], group["queue"], group["status"].lower(), group["lag"],
                Number(seconds(age)), Number(share(done["share"] if done else None)), *lengths,
                Number(count(leases["expired"]) if leases else NOTHING), group["dead_letters"], group["missed"],
            )
        )  # fmt: skip
    heads = (
        "group", "queue", "status", "lag", "oldest waits", "completed", "50 %", "95 %", "99 %", "95 % before lease",
        "95 % in lease", "expired leases", "dead letters", "missed messages",
    )  # fmt: skip
    return _table("Groups", "groups", heads, rows)


def _dead_letters(result: Result) -> Markup | None:
    rows = [
        (
            row["letters"], _error(row), row["group_name"], row["queue"], row["partitions"], row["attempts"],
            time(row["first_at"]), time(row["last_at"]),
        )
        for row in result.tables["errors"]
    ]  # fmt: skip
    heads = (
        "dead letters",
        "error (click for an example)",
        "group",
        "queue",
        "partitions",
        "attempts",
        "first",
        "last",
    )
    return _table("Dead letters", "errors", heads, rows)


def _error(row: Row) -> Markup:
    return el("details", el("summary", el("bdi", short(row["fingerprint"], 160))), el("pre", row["example"]))


def _partitions(result: Result) -> Markup | None:
    rows = [
        (
            row["queue"], row["partition"], row["messages"], Number(share(row["share"])),
            Number(rate(row["busiest_per_second"])), time(row["busiest_at"]),
        )
        for row in sorted(result.tables["hot_partitions"], key=lambda row: -row["messages"])
    ]  # fmt: skip
    heads = ("queue", "partition", "messages", "share of the queue", "busiest, messages/s", "at")
    return _table("Hot partitions", "hot_partitions", heads, rows)
