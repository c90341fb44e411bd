"""What retention would take now, by which rule, and which groups would miss some of it."""

from collections.abc import Iterator, Sequence

from skep import Skep
from skep.cli.connect import connect
from skep.cli.show import SHOWN_LANES, Cell, as_dict, counted, say, show_json, show_table
from skep.config import Config
from skep.message import PendingGroup, RetentionDeletion

LANES = 200

Report = Sequence[tuple[RetentionDeletion, list[str]]]


def show(config: Config, queue: str | None, *, limit: int | None, as_json: bool) -> None:
    with connect(config) as mq:
        report = list(_look(mq, queue))
    report.sort(key=lambda each: (each[0].missed, each[0].messages), reverse=True)
    shown = report[: limit or (None if as_json else SHOWN_LANES)]
    if as_json:
        show_json([as_dict(lane) | {"messages": lane.messages, "groups": groups} for lane, groups in shown])
    else:
        _show_table(report, shown)


def _look(mq: Skep, queue: str | None) -> Iterator[tuple[RetentionDeletion, list[str]]]:
    """Yield what would go from each lane, and the groups that are owed some of that."""
    behind: dict[str, list[PendingGroup]] = {}
    for lanes in _pages(mq, queue):
        for lane in mq.retain(lanes, dry_run=True):
            if lane.missed and lane.queue not in behind:
                behind[lane.queue] = mq.pending_groups(lane.queue)
            yield lane, [each.group for each in behind.get(lane.queue, ()) if _misses(each, lane)]


def _pages(mq: Skep, queue: str | None) -> Iterator[Sequence[int]]:
    if queue is not None:
        mq.queue(queue).status()  # raises if there is none
        lanes = [lane.partition_id for lane in mq.partitions(queue)]
        yield from (lanes[start : start + LANES] for start in range(0, len(lanes), LANES))
        return
    last = 0
    while page := mq.partitions_after(last, LANES):
        last = page[-1]
        yield page


def _misses(each: PendingGroup, lane: RetentionDeletion) -> bool:
    return lane.missed > 0 and each.partition == lane.partition and each.position < lane.end_offset


def _show_table(report: Report, shown: Report) -> None:
    if report:
        headers = ("queue", "partition", "rule", "messages", "offsets", "missed", "by")
        show_table(headers, (_row(lane, groups) for lane, groups in shown))
    if len(shown) < len(report):
        more = counted(len(report) - len(shown), "more partition")
        say(f"and {more}, with less; --limit {len(report)} shows all")
    messages, missed = (sum(lane.messages for lane, _ in report), sum(lane.missed for lane, _ in report))
    say(f"{counted(messages, 'message')} would be deleted, groups would miss {missed:,}")


def _row(lane: RetentionDeletion, groups: Sequence[str]) -> tuple[Cell, ...]:
    offsets = f"{lane.first_offset} to {lane.end_offset - 1}"
    return lane.queue, lane.partition, lane.rule, lane.messages, offsets, lane.missed, ", ".join(groups) or None
