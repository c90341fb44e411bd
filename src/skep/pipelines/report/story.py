"""What an analysis says, in sentences: is it healthy, who lags, what failed."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from skep.pipelines.report.markup import short
from skep.pipelines.report.result import Result, Row
from skep.pipelines.report.words import count, counted, listed, mark, rate, seconds, share, time

LATE = 300.0  # seconds that the oldest message may wait before it is worth a word
MANY_EXPIRED = 0.01  # of all leases
HOT, SPREAD = 0.5, 4  # share of a queue in one partition, if it has so many
NAMED = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that needs attention."""

    kind: Literal["bad", "warn"]
    text: str


def findings(result: Result) -> list[Finding]:
    """Return what needs attention, the worst first."""
    found = [*_groups(result), *_letters(result), *_expired(result), *_hot(result)]
    return sorted(found, key=lambda finding: finding.kind != "bad")


def sentences(result: Result) -> list[str]:
    """Return the summary."""
    return [*_volume(result), *_times(result), *_behind(result), *_failed(result), *_fanned(result)]


def name_of(row: Row) -> str:
    return f"{short(row['group_name'])} on {short(row['queue'])}"


def _groups(result: Result) -> Iterator[Finding]:
    for group in sorted(result.groups, key=lambda group: -group["lag"]):
        who, lag = f"Group {name_of(group)}", counted(group["lag"], "message")
        if group["missed"]:
            missed = counted(group["missed"], "message")
            yield Finding("bad", f"{who} missed {missed}: retention deleted them before the group was done with them.")
        if group["status"] == "DEAD":
            yield Finding("bad", f"{who} is dead: it gave no sign of life for too long, with {lag} to do.")
        elif group["status"] == "PAUSED" and group["lag"]:
            yield Finding("warn", f"{who} is paused, with {lag} to do.")
        elif group["lag"] and (age := _age(result.made_at, group["oldest_pending_at"])) >= LATE:
            grows = ", and the backlog grows" if _grows(result, group) else ""
            yield Finding("warn", f"{who} is {lag} behind; the oldest has waited for {seconds(age)}{grows}.")


def _grows(result: Result, group: Row) -> bool:
    """Whether it is worse now than it was three quarters of the time ago."""
    lags = [
        row["messages"]
        for row in result.tables["lag"]
        if (row["queue"], row["group_name"]) == (group["queue"], group["group_name"])
    ]
    return len(lags) >= 4 and lags[-1] > 1.1 * lags[len(lags) // 4]  # noqa: PLR2004


def _letters(result: Result) -> Iterator[Finding]:
    errors = result.tables["errors"]
    if errors:
        total = sum(row["letters"] for row in errors)
        worst = errors[0]
        most = f"{count(worst['letters'])} of them" if total > worst["letters"] else "All"
        kinds = len({row["id"] for row in errors})
        different = f", with {counted(kinds, 'kind')} of error" if kinds > 1 else ""
        text = f"{most} for group {name_of(worst)}: {short(worst['fingerprint'], 120)}"
        yield Finding("warn", f"{counted(total, 'message')} failed for good{different}. {text}")


def _expired(result: Result) -> Iterator[Finding]:
    for row in result.tables["deliveries"]:
        if row["expired"] > MANY_EXPIRED * row["leases"]:
            part = f"{count(row['expired'])} of {counted(row['leases'], 'lease')}"
            yield Finding(
                "warn",
                f"{part} of group {name_of(row)} ran out without an answer: consumers died, or were too slow.",
            )


def _hot(result: Result) -> Iterator[Finding]:
    for row in result.tables["skew"]:
        if row["partitions"] >= SPREAD and row["largest_share"] >= HOT:
            where = f"partition {short(row['largest_partition'])}, of {count(row['partitions'])}"
            yield Finding(
                "warn", f"{share(row['largest_share'])} of the messages of {short(row['queue'])} are in {where}."
            )


def _volume(result: Result) -> Iterator[str]:
    rows = result.tables["throughput"]
    if not rows:
        yield f"No messages{_span(result)}."
        return
    step = result.steps["messages"]
    first, last = min(row["bucket"] for row in rows), max(row["bucket"] for row in rows)
    length = (last - first).total_seconds() + step
    busiest = max(rows, key=lambda row: row["per_second"])
    queues = len({row["queue"] for row in rows})
    took = "one queue" if queues == 1 else counted(queues, "queue")
    yield (
        f"{counted(result.messages, 'message')} came to {took} from {time(first)} on, within {seconds(length)}: "
        f"{rate(result.messages / length)} a second on average, and {rate(busiest['per_second'])} a second to "
        f"{short(busiest['queue'])} in the busiest {mark(step)}, at {time(busiest['bucket'])}."
    )


def _span(result: Result) -> str:
    since = f" since {time(result.since)}" if result.since else ""
    return since + (f" until {time(result.until)}" if result.until else "")


def _times(result: Result) -> Iterator[str]:
    rows = result.tables["time_in_queue"]
    for row in rows[:NAMED]:
        slow = "waiting for a consumer" if row["waited_p95"] >= row["held_p95"] else "being worked on"
        yield (
            f"Group {name_of(row)} was done with half of its messages within {seconds(row['p50'])} of their push, with "
            f"95 % within {seconds(row['p95'])} and with 99 % within {seconds(row['p99'])}; most of that was {slow}."
        )
    if len(rows) > NAMED:
        yield f"The other {counted(len(rows) - NAMED, 'group')} were faster."
    if not rows and result.messages:
        yield "How long messages were in the queue is not known: no lease of these queues was logged in this time."


def _behind(result: Result) -> Iterator[str]:
    late = sorted((group for group in result.groups if group["lag"]), key=lambda group: -group["lag"])
    if not late:
        if result.groups:
            yield "No group is behind."
        elif result.messages:
            yield "There are no groups: nobody reads these queues."
        return
    told = [f"{name_of(group)} by {counted(group['lag'], 'message')}" for group in late[:NAMED]]
    more = f" Another {counted(len(late) - NAMED, 'group')} are less so." if len(late) > NAMED else ""
    yield f"Behind now: {listed(told)}.{more}"


def _failed(result: Result) -> Iterator[str]:
    """What failed is a finding."""
    if result.messages and not result.tables["errors"]:
        yield "No message failed for good."


def _fanned(result: Result) -> Iterator[str]:
    rows = result.tables["fanout"]
    done, owed = (sum(row[name] for row in rows) for name in ("done_by_all", "owed"))
    if done + owed:
        yield (
            f"{share(done / (done + owed))} of the messages that are for someone are done by every group; "
            f"{counted(owed, 'message')} still wait for at least one."
        )
    shared = [row for row in result.tables["fanout_time"] if _readers(result, row["queue"]) > 1]
    for row in shared[:NAMED]:
        yield (
            f"In {short(row['queue'])} the last group was done with half of the messages within {seconds(row['p50'])}, "
            f"and with 99 % within {seconds(row['p99'])}."
        )


def _readers(result: Result, queue: str) -> int:
    return sum(group["queue"] == queue for group in result.groups)


def _age(now: datetime, then: datetime | None) -> float:
    return 0.0 if then is None else (now - then).total_seconds()
