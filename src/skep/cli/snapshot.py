"""The data of `skep top`: totals over queues and groups, and how they are drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from skep.cli.chart import buckets, sparkline
from skep.cli.group import STYLES
from skep.cli.output import make_table
from skep.cli.show import Cell, as_dict, counted, duration, one_line
from skep.message import CurrentProgress

LIVE = ("ACTIVE", "PAUSED")
TREND_WIDTH = 20
STEADY = 0.05  # a lag within this share of its mean neither grows nor shrinks
OTHER_LINES = 6  # the headers of two tables, and a line below each with the number of rows left out
LONG_TRANSACTION = 60  # seconds
QUEUE_HEADERS = ("queue", "pushed/s", "done/s", "kept", "lag", "oldest", "dead")
GROUP_HEADERS = ("group", "queue", "status", "done/s", "lag", "trend", "oldest", "leased", "dead")


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue, with the totals of its groups."""

    queue: str
    pushed: float | None
    done: float | None
    kept: int
    lag: int
    oldest_seconds: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All queues and groups at one time. Dead and cancelled groups hold nothing back and count in no total."""

    at: datetime | None
    pushed: float | None
    done: float | None
    lag: int
    oldest_seconds: float
    leased: int
    dead_letters: int
    oldest_transaction_seconds: float | None
    queues: list[QueueSummary]
    groups: list[CurrentProgress]


def summarize(places: Sequence[CurrentProgress], oldest_transaction: float | None) -> Snapshot:
    """Return the totals of queues and groups, sorted by lag."""
    of_queue: dict[str, list[CurrentProgress]] = {}
    for place in places:
        of_queue.setdefault(place.queue, []).append(place)
    queues = [_queue_summary(place, of_queue[place.queue]) for place in places if not place.group]
    groups = [place for place in places if place.group and place.status != "CANCELLED"]
    live = [group for group in groups if group.status in LIVE]
    return Snapshot(
        at=places[0].at if places else None,
        pushed=_total(queue.pushed for queue in queues),
        done=_total(group.rate for group in groups),
        lag=sum(group.lag for group in live),
        oldest_seconds=max((group.oldest_seconds for group in live), default=0),
        leased=sum(group.leased for group in live),
        dead_letters=sum(queue.dead_letters for queue in queues),
        oldest_transaction_seconds=oldest_transaction,
        queues=sorted(queues, key=lambda queue: (-queue.lag, -(queue.pushed or 0), queue.queue)),
        groups=sorted(groups, key=lambda group: (-group.lag, -(group.rate or 0), group.group, group.queue)),
    )


def _queue_summary(place: CurrentProgress, of_queue: Sequence[CurrentProgress]) -> QueueSummary:
    groups = [other for other in of_queue if other.group]
    live = [group for group in groups if group.status in LIVE]
    return QueueSummary(
        queue=place.queue,
        pushed=place.rate,
        done=_total(group.rate for group in groups),
        kept=place.lag,
        lag=sum(group.lag for group in live),
        oldest_seconds=max((group.oldest_seconds for group in live), default=0),
        dead_letters=place.dead_letters,
    )


def _total(rates: Iterable[float | None]) -> float | None:
    """Return the sum of the known rates."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def to_json(snapshot: Snapshot) -> dict[str, Any]:
    groups = [as_dict(group) for group in snapshot.groups]
    for group in groups:
        del group["at"]
    return as_dict(snapshot) | {"groups": groups}


def overview(snapshot: Snapshot) -> Text:
    """Return the totals in one line, problems in red."""
    line = Text.assemble(
        *("pushed ", (_rate(snapshot.pushed), "bold"), "  done ", (_rate(snapshot.done), "bold")),
        *("  lag ", (f"{snapshot.lag:,}", "bold")),
        f" (oldest {duration(snapshot.oldest_seconds)})" if snapshot.lag else "",
        f"  leased {snapshot.leased:,}",
    )
    line.append("  dead letters ").append(f"{snapshot.dead_letters:,}", "bold red" if snapshot.dead_letters else "bold")
    if (seconds := snapshot.oldest_transaction_seconds) is not None:
        line.append("  oldest transaction ").append(
            duration(seconds), "bold red" if seconds > LONG_TRANSACTION else "bold"
        )
    return line


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}/s"


def queue_cells(queue: QueueSummary) -> tuple[Cell, ...]:
    oldest = duration(queue.oldest_seconds) if queue.lag else None
    return queue.queue, queue.pushed, queue.done, queue.kept, queue.lag, oldest, _red_if_any(queue.dead_letters)


def group_cells(group: CurrentProgress) -> tuple[Cell, ...]:
    status = Text(group.status or "", STYLES[group.status] if group.status else "")
    oldest = duration(group.oldest_seconds) if group.lag else None
    numbers = (group.rate, group.lag, trend(group.trend or []), oldest, group.leased, _red_if_any(group.dead_letters))
    return group.group, group.queue, status, *numbers


def _red_if_any(number: int) -> Text | int:
    return Text(f"{number:,}", "red") if number else number


def trend(lags: Sequence[int]) -> Text:
    """Draw the lag over time, and an arrow for its direction."""
    if not any(lags):
        return Text("")
    mean = sum(lags) / len(lags)
    arrow, style = ("→", "")
    if lags[-1] > mean * (1 + STEADY):
        arrow, style = "↑", "red"
    elif lags[-1] < mean * (1 - STEADY):
        arrow, style = "↓", "green"
    line = sparkline(buckets(lags, TREND_WIDTH))
    return Text.assemble((line, "cyan"), " ", (arrow, style))


class TopScreen:
    """The full screen: a title, the overview, and as many rows of both tables as fit."""

    def __init__(self, snapshot: Snapshot, title: str, problem: str | None = None) -> None:
        self._snapshot = snapshot
        self._title = title
        self._problem = problem

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        queues, groups = self._snapshot.queues, self._snapshot.groups
        line = Text(one_line(self._problem), "bold red") if self._problem else overview(self._snapshot)
        top = [
            Text(self._title, "dim", no_wrap=True, overflow="ellipsis"),
            *line.wrap(console, options.max_width),
            Text(),
        ]
        yield from top
        room = (options.height or console.height) - len(top) - OTHER_LINES
        of_queues = max(1, min(len(queues), max(room // 2, room - len(groups))))
        yield make_table(QUEUE_HEADERS, map(queue_cells, queues[:of_queues]), cut=True)
        yield _more(len(queues) - of_queues, "queue")
        of_groups = max(1, room - of_queues)
        yield make_table(GROUP_HEADERS, map(group_cells, groups[:of_groups]), cut=True)
        yield _more(len(groups) - of_groups, "group")


def _more(left: int, noun: str) -> Text:
    return Text(f"and {counted(left, f'more {noun}')}" if left > 0 else "", "dim")
