"""`skep queue history`: rates and lags over time, of a queue or of a group on it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import ceil

from skep.cli.chart import buckets, sparkline
from skep.cli.connect import connect
from skep.cli.report import errors
from skep.cli.show import Cell, counted, say, show_json, show_table, span
from skep.cli.times import parse_length
from skep.config import Config
from skep.message import Sample

ROWS = 20
WIDTH = 60  # of the line above the table


def show(config: Config, queue: str, group: str | None, since: str, *, as_json: bool) -> None:
    length = parse_length(since)
    with connect(config) as mq:
        mq.queue(queue).status()  # raises if there is none
        samples = mq.history(queue, group or "", length)
    if as_json:
        show_json(samples)
    elif samples:
        _show_lines(samples, "left to do" if group else "kept")
        _show_table(samples, of_group=group is not None)
    else:
        errors.print("no samples of that time; `skep serve` and `skep upkeep` take them", style="dim", markup=False)


def _show_lines(samples: Sequence[Sample], what: str) -> None:
    rates, lags = [sample.rate or 0 for sample in samples[1:]], [float(sample.lag) for sample in samples]
    say(f"rate  {sparkline(buckets(rates, WIDTH))}  up to {max(rates, default=0):,.1f} messages/s")
    say(f"lag   {sparkline(buckets(lags, WIDTH))}  up to {counted(int(max(lags)), 'message')} {what}")


def _show_table(samples: Sequence[Sample], *, of_group: bool) -> None:
    names = ("lag", "leased", "dead letters", "oldest pending") if of_group else ("messages", "dead letters", "oldest")
    show_table(("until", "messages/s", *names), (_row(*stretch, of_group=of_group) for stretch in _stretches(samples)))


def _stretches(samples: Sequence[Sample]) -> Iterator[tuple[Sample, float | None]]:
    """Yield the last sample of each stretch of time, and the rate of the whole stretch."""
    size = max(1, ceil(len(samples) / ROWS))
    for end in range((len(samples) - 1) % size, len(samples), size):
        yield samples[end], _rate(samples[max(0, end - size) : end + 1])


def _rate(samples: Sequence[Sample]) -> float | None:
    seconds = (samples[-1].at - samples[0].at).total_seconds()
    moved = sum((after.rate or 0) * (after.at - before.at).total_seconds() for before, after in pairwise(samples))
    return moved / seconds if seconds > 0 else samples[-1].rate


def _row(sample: Sample, rate: float | None, *, of_group: bool) -> tuple[Cell, ...]:
    numbers = (sample.lag, sample.leased, sample.dead) if of_group else (sample.lag, sample.dead)
    return f"{sample.at.astimezone():%m-%d %H:%M:%S}", rate, *numbers, span(sample.lag_seconds)
