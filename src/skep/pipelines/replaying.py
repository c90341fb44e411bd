"""Replay: copy the messages of a queue, from archive and log, to another queue; also for a group that joins late.

Partitions keep their names and their order. The transaction id of a copy consists of the partition id and the offset of
the original, so that a second run completes one that was killed. The headers of a copy have its origin.
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
from skep.pipelines.importing import PUSH, pushed
from skep.spark.database import MOVE_GROUP, PARTITION_NAMES, database
from skep.spark.log import Log
from skep.spark.options import QueueScope, SourceOptions
from skep.spark.parquet import ArchiveStore, encode
from skep.spark.reader import read_runs
from skep.spark.runs import Run, as_arguments, chunks, count, pack
from skep.spark.window import batch_runs

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
OFFSETS_BETWEEN: LiteralString = """
    SELECT first_offset, end_offset
    FROM skep._offsets_between(%(partition_ids)s, %(since)s::timestamptz, %(until)s::timestamptz)
"""
Counts = tuple[int, int, int]
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The messages that were pushed at or after `since`, and before `until`."""

    since: datetime | None = None
    until: datetime | None = None

    def contains(self, time: datetime) -> bool:
        return (self.since is None or self.since <= time) and (self.until is None or time < self.until)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay: messages read, messages pushed, and duplicates that were not pushed again."""

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
    time_range: TimeRange | None = None,
    group: str | None = None,
    on_progress: OnProgress | None = None,
) -> Replayed:
    """Push the messages of a queue, archived and kept, to another queue.

    A `group` that joins is subscribed to both queues. In the first one it continues after the messages of the replay.
    """
    if queue == to_queue:
        raise InvalidArgument("a queue cannot be replayed into itself")
    if group is not None:
        _subscribe(url, queue, to_queue, group, time_range)
    options = _options(url, queue, archive)
    runs = batch_runs(Log(options))
    if time_range is not None:
        runs = _within(url, runs, time_range)
    total = count(runs)
    began = pushed(url, to_queue) if on_progress else 0
    report = (lambda: on_progress(pushed(url, to_queue) - began, total)) if on_progress else None
    work = partial(copy, options, to_queue, time_range or TimeRange())
    read, queued, duplicate = 0, 0, 0
    for some in _rounds(url, runs):
        shares = pack(some, cores=tasks.cores(spark), max_rows=None, min_tasks=None)
        for counts in tasks.run(spark, work, shares, report):
            read, queued, duplicate = read + counts[0], queued + counts[1], duplicate + counts[2]
    if on_progress:
        on_progress(total, total)
    if group is not None:
        _move_group(url, group, runs)
    return Replayed(queue, to_queue, read, queued, duplicate)


def _options(url: str, queue: str, archive: str | None) -> SourceOptions:
    location = None if archive is None else ArchiveStore.at(archive).location
    start = "earliest" if archive is None else {"archive": True}
    return SourceOptions(url=url, scope=QueueScope((queue,)), start=start, archive=location)


def _within(url: str, runs: Sequence[Run], time_range: TimeRange) -> list[Run]:
    """Omit messages outside a time range, as far as this is known without reading them."""
    ids, since, until = [run.partition_id for run in runs], time_range.since, time_range.until
    rows = database(url).rows(OFFSETS_BETWEEN, partition_ids=ids, since=since, until=until)
    within = (
        Run(run.partition_id, max(run.first, first or 0), min(run.end, run.end if end is None else end))
        for run, (first, end) in zip(runs, rows, strict=True)
    )
    return [run for run in within if run.first < run.end]


def _rounds(url: str, runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs that can be copied at the same time.

    A partition that was deleted and created again has two ids and one name: the older one has to be copied first.
    """
    partitions: dict[object, list[Run]] = defaultdict(list)
    ids = [run.partition_id for run in runs]
    names = database(url).rows(PARTITION_NAMES, partition_ids=ids) if runs else []
    deleted = database(url).rows(DELETED_NAMES, partition_ids=ids) if runs else []
    known: dict[int, str] = dict(deleted)
    for run, (_, name) in sorted(zip(runs, names, strict=True)):
        partitions[name or known.get(run.partition_id)].append(run)
    most = max((len(each) for each in partitions.values()), default=0)
    return [[each[number] for each in partitions.values() if number < len(each)] for number in range(most)]


DELETED_NAMES: LiteralString = """
    SELECT DISTINCT partition_id, partition
    FROM skep._archived_runs(%(partition_ids)s,
                             array_fill(NULL::bigint, ARRAY[cardinality(%(partition_ids)s::bigint[])]),
                             array_fill(NULL::bigint, ARRAY[cardinality(%(partition_ids)s::bigint[])]))
"""


def copy(options: SourceOptions, to_queue: str, time_range: TimeRange, runs: Sequence[Run]) -> Counts:
    """Copy runs, in order. This is the work of a task."""
    read, queued, duplicate = 0, 0, 0
    for some in chunks(runs, AT_ONCE):
        items = list(_messages(options, to_queue, time_range, some))
        if items:
            found: dict[str, int] = dict(database(options.url).rows(PUSH, messages=f"[{','.join(items)}]"))
            queued, duplicate = queued + found.get("queued", 0), duplicate + found.get("duplicate", 0)
        read += len(items)
    return read, queued, duplicate


def _messages(options: SourceOptions, to_queue: str, time_range: TimeRange, runs: Sequence[Run]) -> Iterator[str]:
    rows, names = read_runs(database(options.url), options, runs, payloads=True)
    for number, offset, time, deleted, value, headers, transaction_id, trace_id, producer in rows:
        if deleted or not time_range.contains(time):
            continue
        (queue, partition), id_ = names[int(number) - 1], runs[int(number) - 1].partition_id
        origin: dict[str, Any] = {"queue": queue, "offset": offset, "time": time.isoformat()}
        if transaction_id is not None:
            origin["transaction_id"] = transaction_id
        message = {"queue": to_queue, "partition": partition, "transaction_id": f"replay-{id_}-{offset}"}
        optional = {"trace_id": trace_id, "producer": producer}
        # Payload and headers are not parsed, so that their JSON stays the same.
        own = f"{headers[:-1]}, " if headers and headers != "{}" else "{"
        extended = f'{own}"skep-origin": {encode(origin)}}}'
        yield f'{encode({**message, **optional})[:-1]}, "headers": {extended}, "payload": {value}}}'


def _subscribe(url: str, queue: str, to_queue: str, group: str, time_range: TimeRange | None) -> None:
    """Subscribe the group to both queues, so that retention keeps the messages that are pushed during the replay."""
    if time_range is not None:
        raise InvalidArgument("group cannot be combined with a time range: a group that joins gets all messages")
    if database(url).one(READS, group=group, queue=queue)[0]:
        raise Conflict(f'group "{group}" already reads queue "{queue}"', hint="Name a group that does not read it yet.")
    for each in (queue, to_queue):
        database(url).rows(SUBSCRIBE, group=group, queue=each)


def _move_group(url: str, group: str, runs: Sequence[Run]) -> None:
    """Move the group to the end of the replay: it gets later messages from the first queue."""
    # In one call, so that a job that is killed can be run again.
    database(url).rows(MOVE_GROUP, group=group, **as_arguments(runs))
