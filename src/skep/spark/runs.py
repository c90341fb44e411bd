"""Runs of messages: counted, packed into Spark's tasks, and split into queries. No I/O."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

FEW, MANY = 10_000, 250_000  # rows in a task; starting a task costs as much as reading thousands of rows


class Run(NamedTuple):
    """Contiguous messages of one partition: offsets [first, end)."""

    partition_id: int
    first: int
    end: int


class DeletedRun(NamedTuple):
    """Messages that retention deleted before they were read: [first, end). `first` is None if it is unknown."""

    partition_id: int
    first: int | None
    end: int


def count(runs: Iterable[Run]) -> int:
    """Return the number of messages in the runs."""
    return sum(run.end - run.first for run in runs)


def as_arguments(runs: Sequence[Run] | Sequence[DeletedRun]) -> dict[str, list[int | None]]:
    """Return the runs as the three array arguments of the read functions."""
    return {
        "partition_ids": [run.partition_id for run in runs],
        "firsts": [run.first for run in runs],
        "ends": [run.end for run in runs],
    }


def pack(runs: Sequence[Run], *, cores: int, max_rows: int | None, min_tasks: int | None) -> list[list[Run]]:
    """Distribute runs over tasks.

    A run is split only if `max_rows` or `min_tasks` asks for it: messages are in order within a task, not across tasks.
    """
    rows = count(runs)
    if not rows:
        return []
    tasks = max(min_tasks or 0, -(-rows // max_rows) if max_rows else 0)
    if tasks:
        return list(_fill(runs, -(-rows // tasks), split=True))
    tasks = max(min(cores, -(-rows // FEW)), -(-rows // MANY))
    return list(_fill(runs, -(-rows // tasks), split=False))


def chunks(runs: Sequence[Run], size: int) -> list[list[Run]]:
    """Split runs into chunks of `size` messages, one for each query."""
    return list(_fill(runs, size, split=True))


def _fill(runs: Sequence[Run], size: int, *, split: bool) -> Iterator[list[Run]]:
    chunk: list[Run] = []
    room = size
    for run in _split(runs, size) if split else runs:
        chunk.append(run)
        room -= run.end - run.first
        if room <= 0:
            yield chunk
            chunk, room = [], size
    if chunk:
        yield chunk


def _split(runs: Iterable[Run], size: int) -> Iterator[Run]:
    """Split runs at every multiple of `size` messages."""
    room = size
    for partition_id, first, end in runs:
        at = first
        while at < end:
            step = min(room, end - at)
            yield Run(partition_id, at, at + step)
            at, room = at + step, (room - step) or size
