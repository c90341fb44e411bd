"""Where everything stands, for `skep top`: sums over queues and groups, and how they are drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from skep.cli.chart import buckets, sparkline
from skep.cli.group import STYLES
from skep.cli.show import Cell, as_dict, counted, make_table, one_line, span
from skep.message import CurrentProgress

LIVE = ("ACTIVE", "PAUSED")
TREND_WIDTH = 20
STEADY = 0.05  # a lag within so much of its mean neither grows nor shrinks
NOT_ROWS = 6  # the headers of two tables, and below each how many more there are
LONG_TRANSACTION = 60  # seconds
QUEUE_HEADERS = ("queue", "pushed/s", "done/s", "kept", "lag", "oldest", "dead")
GROUP_HEADERS = ("group", "queue", "status", "done/s", "lag", "trend", "oldest", "leased", "dead")


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue, and what all its groups together have to do."""

    queue: str
    pushed: float | None
    done: float | None
    kept: int
    lag: int
    oldest_seconds: float
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Standing:
    """One look at everything. Groups that are dead or cancelled hold nothing back, and count in no sum."""

    at: datetime | None
    pushed: float | None
    done: float | None
    lag: int
    oldest_seconds: float
    leased: int
    dead_letters: int
    oldest_transaction_seconds: float | None
    queues: list[QueueLine]
    groups: list[CurrentProgress]


def stand(places: Sequence[CurrentProgress], oldest_transaction: float | None) -> Standing:
    of_queue: dict[str, list[CurrentProgress]] = {}
    for place in places:
        of_queue.setdefault(place.queue, []).append(place)
    queues = [_queue_line(place, of_queue[place.queue]) for place in places if not place.group]
    groups = [place for place in places if place.group and place.status != "CANCELLED"]
    live = [group for group in groups if group.status in LIVE]
    return Standing(
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


def _queue_line(place: CurrentProgress, of_queue: Sequence[CurrentProgress]) -> QueueLine:
    groups = [other for other in of_queue if other.group]
    live = [group for group in groups if group.status in LIVE]
    return QueueLine(
        queue=place.queue,
        pushed=place.rate,
        done=_total(group.rate for group in groups),
        kept=place.lag,
        lag=sum(group.lag for group in live),
        oldest_seconds=max((group.oldest_seconds for group in live), default=0),
        dead_letters=place.dead_letters,
    )


def _total(rates: Iterable[float | None]) -> float | None:
    """Sum up what is known."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def as_json(standing: Standing) -> dict[str, Any]:
    groups = [as_dict(group) for group in standing.groups]
    for group in groups:
        del group["at"]
    return as_dict(standing) | {"groups": groups}


def overview(standing: Standing) -> Text:
    """Say it in a line: what hurts is red."""
    line = Text.assemble(
        *("pushed ", (_rate(standing.pushed), "bold"), "  done ", (_rate(standing.done), "bold")),
        *("  lag ", (f"{standing.lag:,}", "bold")),
        f" (oldest {span(standing.oldest_seconds)})" if standing.lag else "",
        f"  leased {standing.leased:,}",
    )
    line.append("  dead letters ").append(f"{standing.dead_letters:,}", "bold red" if standing.dead_letters else "bold")
    if (seconds := standing.oldest_transaction_seconds) is not None:
        line.append("  oldest transaction ").append(span(seconds), "bold red" if seconds > LONG_TRANSACTION else "bold")
    return line


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.1f}/s"


def queue_cells(line: QueueLine) -> tuple[Cell, ...]:
    oldest = span(line.oldest_seconds) if line.lag else None
    return line.queue, line.pushed, line.done, line.kept, line.lag, oldest, _alarming(line.dead_letters)


def group_cells(group: CurrentProgress) -> tuple[Cell, ...]:
    status = Text(group.status or "", STYLES[group.status] if group.status else "")
    oldest = span(group.oldest_seconds) if group.lag else None
    numbers = (group.rate, group.lag, trend(group.trend or []), oldest, group.leased, _alarming(group.dead_letters))
    return group.group, group.queue, status, *numbers


def _alarming(number: int) -> Text | int:
    return Text(f"{number:,}", "red") if number else number


def trend(lags: Sequence[int]) -> Text:
    """Draw the lag over time, and where it goes."""
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


class Screen:
    """The whole terminal: a title, the overview, and as much of both tables as there is room for."""

    def __init__(self, standing: Standing, title: str, trouble: str | None = None) -> None:
        self._standing = standing
        self._title = title
        self._trouble = trouble

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        queues, groups = self._standing.queues, self._standing.groups
        line = Text(one_line(self._trouble), "bold red") if self._trouble else overview(self._standing)
        top = [
            Text(self._title, "dim", no_wrap=True, overflow="ellipsis"),
            *line.wrap(console, options.max_width),
            Text(),
        ]
        yield from top
        room = (options.height or console.height) - len(top) - NOT_ROWS
        of_queues = max(1, min(len(queues), max(room // 2, room - len(groups))))
        yield make_table(QUEUE_HEADERS, map(queue_cells, queues[:of_queues]), cut=True)
        yield _more(len(queues) - of_queues, "queue")
        of_groups = max(1, room - of_queues)
        yield make_table(GROUP_HEADERS, map(group_cells, groups[:of_groups]), cut=True)
        yield _more(len(groups) - of_groups, "group")


def _more(left: int, noun: str) -> Text:
    return Text(f"and {counted(left, f'more {noun}')}" if left > 0 else "", "dim")
