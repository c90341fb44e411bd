"""`skep queue history`: rates and lags over time, of a queue or of a group on it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import Annotated

import typer

from skep.cli.chart import buckets, sparkline
from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, GroupFilter, Json, Queue
from skep.cli.show import Cell, counted, duration, note, say, show_json, show_table
from skep.cli.times import parse_duration
from skep.message import Sample

ROWS = 20
WIDTH = 60  # of the sparklines


def queue_history(
    queue: Queue,
    group: GroupFilter = None,
    since: Annotated[str, typer.Option(metavar="AGE", help="Age of the oldest sample: 30m, 2h, 1d.")] = "1h",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show rates and lags over time, of a queue or of a group on it."""
    length = parse_duration(since)
    with connect(database_url, data_dir) as mq:
        mq.queue(queue).status()  # raises NotFound if the queue does not exist
        samples = mq.history(queue, group or "", length)
    if as_json:
        show_json(samples)
    elif samples:
        _show_sparklines(samples, "pending" if group else "kept")
        _show_table(samples, of_group=group is not None)
    else:
        note("no samples of that time; `skep serve` and `skep upkeep` take them")


def _show_sparklines(samples: Sequence[Sample], state: str) -> None:
    rates, lags = [sample.rate or 0 for sample in samples[1:]], [float(sample.lag) for sample in samples]
    say(f"rate  {sparkline(buckets(rates, WIDTH))}  up to {max(rates, default=0):,.1f} messages/s")
    say(f"lag   {sparkline(buckets(lags, WIDTH))}  up to {counted(int(max(lags)), 'message')} {state}")


def _show_table(samples: Sequence[Sample], *, of_group: bool) -> None:
    names = ("lag", "leased", "dead letters", "oldest pending") if of_group else ("messages", "dead letters", "oldest")
    rows = (_row(sample, rate, of_group=of_group) for sample, rate in _periods(samples))
    show_table(("until", "messages/s", *names), rows)


def _periods(samples: Sequence[Sample]) -> Iterator[tuple[Sample, float | None]]:
    """Yield the last sample of each period, and the rate of the whole period."""
    size = max(1, ceil(len(samples) / ROWS))
    for end in range((len(samples) - 1) % size, len(samples), size):
        yield samples[end], _rate(samples[max(0, end - size) : end + 1])


def _rate(samples: Sequence[Sample]) -> float | None:
    seconds = (samples[-1].at - samples[0].at).total_seconds()
    moved = sum((after.rate or 0) * (after.at - before.at).total_seconds() for before, after in pairwise(samples))
    return moved / seconds if seconds > 0 else samples[-1].rate


def _row(sample: Sample, rate: float | None, *, of_group: bool) -> tuple[Cell, ...]:
    numbers = (sample.lag, sample.leased, sample.dead) if of_group else (sample.lag, sample.dead)
    return f"{sample.at.astimezone():%m-%d %H:%M:%S}", rate, *numbers, duration(sample.lag_seconds)
