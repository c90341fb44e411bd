"""Replay: what a queue has and had, from archive and log without a seam, into another queue; for late groups too.

Lanes keep their names and their order. A copy's transaction id is made of where it came from, so that a run which was
killed is finished by the next one. Where it came from is in its headers too.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, LiteralString

from pyspark.sql import SparkSession

from skep.errors import Conflict, InvalidArgument
from skep.pipelines import tasks
from skep.pipelines.importing import PUSH, head
from skep.spark.database import FOLLOW, LANE_NAMES, database
from skep.spark.log import Log
from skep.spark.options import Selection, SourceOptions
from skep.spark.parquet import Store, encode
from skep.spark.reader import fetch
from skep.spark.window import Run, chunks, pack

AT_ONCE = 1_000
READS: LiteralString = """
    SELECT EXISTS (SELECT FROM skep.queues q JOIN skep.group_queues g ON g.queue_id = q.id
                   JOIN skep.partitions p ON p.queue_id = q.id
                   JOIN skep.starts s ON s.partition_id = p.id AND s.group_queue_id = g.id
                   WHERE g.group_name = %(group)s AND q.name = %(queue)s)
"""
SUBSCRIBE: LiteralString = """
    SELECT skep.subscribe(group_name => %(group)s, queue => %(queue)s, mode => 'all', heartbeat_timeout => 86400)
"""
SPAN: LiteralString = """
    SELECT first_offset, end_offset
    FROM skep._offsets_between(%(lanes)s, %(since)s::timestamptz, %(until)s::timestamptz)
"""
Counts = tuple[int, int, int]
Watch = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Span:
    """Which messages, by the time they were pushed: from `since` on, before `until`."""

    since: datetime | None = None
    until: datetime | None = None

    def has(self, time: datetime) -> bool:
        return (self.since is None or self.since <= time) and (self.until is None or time < self.until)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay has done: read, pushed, and left out as it was there."""

    queue: str
    to_queue: str
    read: int
    messages: int
    duplicates: int


def replay(
    spark: SparkSession,
    url: str,
    queue: str,
    to_queue: str,
    *,
    archive: str | None = None,
    span: Span | None = None,
    group: str | None = None,
    watch: Watch | None = None,
) -> Replayed:
    """Push what a queue has and had to another one. A `group` goes on in the first queue where the replay ended."""
    if queue == to_queue:
        raise InvalidArgument("a queue is not replayed into itself")
    if group is not None:
        _join(url, queue, to_queue, group, span)
    options = _options(url, queue, archive)
    runs = Log(options).batch()
    if span is not None:
        runs = _within(url, runs, span)
    total = sum(run.end - run.first for run in runs)
    began = head(url, to_queue) if watch else 0
    look = (lambda: watch(head(url, to_queue) - began, total)) if watch else None
    work = partial(copy, options, to_queue, span or Span())
    read, queued, duplicate = 0, 0, 0
    for turn in _turns(url, runs):
        shares = pack(turn, cores=tasks.cores(spark), max_rows=None, min_tasks=None)
        for counts in tasks.run(spark, work, shares, look):
            read, queued, duplicate = read + counts[0], queued + counts[1], duplicate + counts[2]
    if watch:
        watch(total, total)
    if group is not None:
        _settle(url, group, runs)
    return Replayed(queue, to_queue, read, queued, duplicate)


def _options(url: str, queue: str, archive: str | None) -> SourceOptions:
    location = None if archive is None else Store.at(archive).location
    start = "earliest" if archive is None else {"archive": True}
    return SourceOptions(url=url, selection=Selection((queue,)), start=start, archive=location)


def _within(url: str, runs: Sequence[Run], span: Span) -> list[Run]:
    """Leave out what is of another time, as far as that is known without reading it."""
    rows = database(url).rows(SPAN, lanes=[run.lane for run in runs], since=span.since, until=span.until)
    cut = (
        Run(run.lane, max(run.first, first or 0), min(run.end, run.end if end is None else end))
        for run, (first, end) in zip(runs, rows, strict=True)
    )
    return [run for run in cut if run.first < run.end]


def _turns(url: str, runs: Sequence[Run]) -> list[list[Run]]:
    """A partition that was dropped and made anew is two lanes of one name: the older one goes first."""
    lanes: dict[object, list[Run]] = defaultdict(list)
    names = database(url).rows(LANE_NAMES, lanes=[run.lane for run in runs]) if runs else []
    gone = database(url).rows(GONE_NAMES, lanes=[run.lane for run in runs]) if runs else []
    known: dict[int, str] = dict(gone)
    for run, (_, name) in sorted(zip(runs, names, strict=True)):
        lanes[name or known.get(run.lane)].append(run)
    most = max((len(each) for each in lanes.values()), default=0)
    return [[each[turn] for each in lanes.values() if turn < len(each)] for turn in range(most)]


GONE_NAMES: LiteralString = """
    SELECT DISTINCT partition_id, partition
    FROM skep._archived_runs(%(lanes)s, array_fill(NULL::bigint, ARRAY[cardinality(%(lanes)s::bigint[])]),
                            array_fill(NULL::bigint, ARRAY[cardinality(%(lanes)s::bigint[])]))
"""


def copy(options: SourceOptions, to_queue: str, span: Span, runs: Sequence[Run]) -> Counts:
    """Copy runs of lanes, in order, as a task does."""
    read, queued, duplicate = 0, 0, 0
    for some in chunks(runs, AT_ONCE):
        items = list(_messages(options, to_queue, span, some))
        if items:
            found: dict[str, int] = dict(database(options.url).rows(PUSH, messages=f"[{','.join(items)}]"))
            queued, duplicate = queued + found.get("queued", 0), duplicate + found.get("duplicate", 0)
        read += len(items)
    return read, queued, duplicate


def _messages(options: SourceOptions, to_queue: str, span: Span, runs: Sequence[Run]) -> Iterator[str]:
    rows, names = fetch(database(options.url), options, runs, payloads=True)
    for number, offset, time, deleted, value, headers, transaction_id, trace_id, producer in rows:
        if deleted or not span.has(time):
            continue
        (queue, partition), lane = names[int(number) - 1], runs[int(number) - 1].lane
        origin: dict[str, Any] = {"queue": queue, "offset": offset, "time": time.isoformat()}
        if transaction_id is not None:
            origin["transaction_id"] = transaction_id
        message = {"queue": to_queue, "partition": partition, "transaction_id": f"replay-{lane}-{offset}"}
        whose = {"trace_id": trace_id, "producer": producer}
        # Spliced, not parsed: the JSON of payload and headers stays what it is.
        own = f"{headers[:-1]}, " if headers and headers != "{}" else "{"
        extended = f'{own}"skep-origin": {encode(origin)}}}'
        yield f'{encode({**message, **whose})[:-1]}, "headers": {extended}, "payload": {value}}}'


def _join(url: str, queue: str, to_queue: str, group: str, span: Span | None) -> None:
    """Subscribe the group to both, so that it begins at the beginning, and retention keeps what comes meanwhile."""
    if span is not None:
        raise InvalidArgument("a group that joins gets everything: there is no time to give")
    if database(url).one(READS, group=group, queue=queue)[0]:
        raise Conflict(f'group "{group}" reads queue "{queue}" already', hint="Replay is for a group that joins.")
    for each in (queue, to_queue):
        database(url).rows(SUBSCRIBE, group=group, queue=each)


def _settle(url: str, group: str, runs: Sequence[Run]) -> None:
    """Put the group where the replay ended: what it has not copied comes from the first queue."""
    # In one call: a job that is killed here has either put it there, or can be run again.
    starts, ends = [run.first for run in runs], [run.end for run in runs]
    database(url).rows(FOLLOW, group=group, lanes=[run.lane for run in runs], starts=starts, offsets=ends)
