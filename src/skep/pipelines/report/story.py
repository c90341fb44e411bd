"""The findings and the summary of an analysis, in sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from skep.pipelines.report.markup import short
from skep.pipelines.report.result import Result, Row
from skep.pipelines.report.words import count, counted, listed, mark, rate, seconds, share, time

LATE = 300.0  # seconds; an older pending message is a finding
MANY_EXPIRED = 0.01  # of all leases
HOT, MIN_PARTITIONS = 0.5, 4  # share of a queue in one partition; partitions of the queue
NAMED = 3


@dataclass(frozen=True, slots=True)
class ReportFinding:
    """Something that needs attention."""

    kind: Literal["bad", "warn"]
    text: str


def findings(result: Result) -> list[ReportFinding]:
    """Return the findings that need attention, the worst first."""
    found = [*_groups(result), *_dead_letters(result), *_expired(result), *_hot(result)]
    return sorted(found, key=lambda finding: finding.kind != "bad")


def sentences(result: Result) -> list[str]:
    """Return the sentences of the summary."""
    return [*_volume(result), *_times(result), *_behind(result), *_failed(result), *_fanout(result)]


def name_of(row: Row) -> str:
    return f"{short(row['group_name'])} on {short(row['queue'])}"


def _groups(result: Result) -> Iterator[ReportFinding]:
    for group in sorted(result.groups, key=lambda group: -group["lag"]):
        who, lag = f"Group {name_of(group)}", counted(group["lag"], "message")
        if group["missed"]:
            missed = counted(group["missed"], "message")
            yield ReportFinding(
                "bad", f"{who} missed {missed}: retention deleted them before the group completed them."
            )
        if group["status"] == "DEAD":
            yield ReportFinding("bad", f"{who} is dead: it sent no heartbeat for too long. Its lag is {lag}.")
        elif group["status"] == "PAUSED" and group["lag"]:
            yield ReportFinding("warn", f"{who} is paused. Its lag is {lag}.")
        elif group["lag"] and (age := _age(result.made_at, group["oldest_pending_at"])) >= LATE:
            grows = ", and the lag is growing" if _grows(result, group) else ""
            yield ReportFinding("warn", f"{who} has a lag of {lag}; the oldest has waited for {seconds(age)}{grows}.")


def _grows(result: Result, group: Row) -> bool:
    """Return whether the lag has grown since the first quarter of the time."""
    lags = [
        row["messages"]
        for row in result.tables["lag"]
        if (row["queue"], row["group_name"]) == (group["queue"], group["group_name"])
    ]
    return len(lags) >= 4 and lags[-1] > 1.1 * lags[len(lags) // 4]  # noqa: PLR2004


def _dead_letters(result: Result) -> Iterator[ReportFinding]:
    errors = result.tables["errors"]
    if errors:
        total = sum(row["letters"] for row in errors)
        worst = errors[0]
        most = f"{count(worst['letters'])} of them" if total > worst["letters"] else "All"
        kinds = len({row["id"] for row in errors})
        different = f", with {counted(kinds, 'kind')} of error" if kinds > 1 else ""
        text = f"{most} for group {name_of(worst)}: {short(worst['fingerprint'], 120)}"
        yield ReportFinding("warn", f"{counted(total, 'message')} became dead letters{different}. {text}")


def _expired(result: Result) -> Iterator[ReportFinding]:
    for row in result.tables["deliveries"]:
        if row["expired"] > MANY_EXPIRED * row["leases"]:
            part = f"{count(row['expired'])} of {counted(row['leases'], 'lease')}"
            yield ReportFinding(
                "warn",
                f"{part} of group {name_of(row)} expired: consumers crashed or were too slow.",
            )


def _hot(result: Result) -> Iterator[ReportFinding]:
    for row in result.tables["skew"]:
        if row["partitions"] >= MIN_PARTITIONS and row["largest_share"] >= HOT:
            where = f"partition {short(row['largest_partition'])}, of {count(row['partitions'])}"
            yield ReportFinding(
                "warn", f"{share(row['largest_share'])} of the messages of {short(row['queue'])} are in {where}."
            )


def _volume(result: Result) -> Iterator[str]:
    rows = result.tables["throughput"]
    if not rows:
        yield f"No messages{_time_range(result)}."
        return
    step = result.steps["messages"]
    first, last = min(row["bucket"] for row in rows), max(row["bucket"] for row in rows)
    length = (last - first).total_seconds() + step
    busiest = max(rows, key=lambda row: row["per_second"])
    queues = len({row["queue"] for row in rows})
    where = "one queue" if queues == 1 else counted(queues, "queue")
    yield (
        f"{counted(result.messages, 'message')} were pushed to {where} within {seconds(length)}, "
        f"starting at {time(first)}: {rate(result.messages / length)} per second on average. "
        f"The peak was {rate(busiest['per_second'])} per second to {short(busiest['queue'])}, "
        f"in the {mark(step)} from {time(busiest['bucket'])}."
    )


def _time_range(result: Result) -> str:
    since = f" since {time(result.since)}" if result.since else ""
    return since + (f" until {time(result.until)}" if result.until else "")


def _times(result: Result) -> Iterator[str]:
    rows = result.tables["time_in_queue"]
    for row in rows[:NAMED]:
        slow = "before the lease" if row["waited_p95"] >= row["held_p95"] else "during the lease"
        yield (
            f"Group {name_of(row)} completed 50 % of its messages within {seconds(row['p50'])} of their push, "
            f"95 % within {seconds(row['p95'])} and 99 % within {seconds(row['p99'])}; most of this time was {slow}."
        )
    if len(rows) > NAMED:
        yield f"The other {counted(len(rows) - NAMED, 'group')} were faster."
    if not rows and result.messages:
        yield "The time in queue is unknown: no lease of these queues was logged in this time."


def _behind(result: Result) -> Iterator[str]:
    late = sorted((group for group in result.groups if group["lag"]), key=lambda group: -group["lag"])
    if not late:
        if result.groups:
            yield "No group has a lag."
        elif result.messages:
            yield "No group reads these queues."
        return
    lags = [f"{name_of(group)} {counted(group['lag'], 'message')}" for group in late[:NAMED]]
    more = f" The lag of {counted(len(late) - NAMED, 'other group')} is smaller." if len(late) > NAMED else ""
    yield f"Current lag: {listed(lags)}.{more}"


def _failed(result: Result) -> Iterator[str]:
    """Dead letters are findings; here is only the sentence that there are none."""
    if result.messages and not result.tables["errors"]:
        yield "No message became a dead letter."


def _fanout(result: Result) -> Iterator[str]:
    rows = result.tables["fanout"]
    done, pending = (sum(row[name] for row in rows) for name in ("done_by_all", "owed"))
    if done + pending:
        yield (
            f"{share(done / (done + pending))} of the messages with at least one group "
            f"are completed by all their groups; {counted(pending, 'message')} are pending."
        )
    shared = [row for row in result.tables["fanout_time"] if _group_count(result, row["queue"]) > 1]
    for row in shared[:NAMED]:
        yield (
            f"In {short(row['queue'])} all groups had completed 50 % of the messages within {seconds(row['p50'])}, "
            f"and 99 % within {seconds(row['p99'])}."
        )


def _group_count(result: Result, queue: str) -> int:
    return sum(group["queue"] == queue for group in result.groups)


def _age(now: datetime, then: datetime | None) -> float:
    return 0.0 if then is None else (now - then).total_seconds()
