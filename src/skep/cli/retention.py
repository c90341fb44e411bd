"""`skep queue retention`: show what retention would delete, without deleting it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, Json, Limit, OptionalQueue
from skep.cli.show import SHOWN_PARTITIONS, Cell, as_dict, counted, say, show_json, show_table
from skep.message import PendingGroup, RetentionDeletion

if TYPE_CHECKING:
    from skep import Skep

PAGE = 200  # partitions

Plan = Sequence[tuple[RetentionDeletion, list[str]]]


def queue_retention(
    queue: OptionalQueue = None,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show what retention would delete now, by which rule, and which groups would miss messages."""
    with connect(database_url, data_dir) as mq:
        plan = list(_plan(mq, queue))
    plan.sort(key=lambda each: (each[0].missed, each[0].messages), reverse=True)
    shown = plan[: limit or (None if as_json else SHOWN_PARTITIONS)]
    if as_json:
        show_json([as_dict(each) | {"messages": each.messages, "groups": groups} for each, groups in shown])
    else:
        _show_table(plan, shown)


def _plan(mq: "Skep", queue: str | None) -> Iterator[tuple[RetentionDeletion, list[str]]]:
    """Yield what would be deleted from each partition, and the groups that have not completed all of it."""
    blocked: dict[str, list[PendingGroup]] = {}
    for partition_ids in _pages(mq, queue):
        for retained in mq.retain(partition_ids, dry_run=True):
            if retained.missed and retained.queue not in blocked:
                blocked[retained.queue] = mq.pending_groups(retained.queue)
            yield retained, [each.group for each in blocked.get(retained.queue, ()) if _would_miss(each, retained)]


def _pages(mq: "Skep", queue: str | None) -> Iterator[Sequence[int]]:
    if queue is not None:
        mq.queue(queue).status()  # raises NotFound if the queue does not exist
        partition_ids = [each.partition_id for each in mq.partitions(queue)]
        yield from (partition_ids[start : start + PAGE] for start in range(0, len(partition_ids), PAGE))
        return
    last = 0
    while page := mq.partitions_after(last, PAGE):
        last = page[-1]
        yield page


def _would_miss(each: PendingGroup, retained: RetentionDeletion) -> bool:
    return retained.missed > 0 and each.partition == retained.partition and each.position < retained.end_offset


def _show_table(plan: Plan, shown: Plan) -> None:
    if plan:
        headers = ("queue", "partition", "rule", "messages", "offsets", "missed", "by")
        show_table(headers, (_row(retained, groups) for retained, groups in shown))
    if len(shown) < len(plan):
        more = counted(len(plan) - len(shown), "more partition")
        say(f"and {more} with fewer messages; --limit {len(plan)} shows all")
    messages, missed = (sum(each.messages for each, _ in plan), sum(each.missed for each, _ in plan))
    say(f"{counted(messages, 'message')} would be deleted, groups would miss {missed:,}")


def _row(each: RetentionDeletion, groups: Sequence[str]) -> tuple[Cell, ...]:
    offsets = f"{each.first_offset} to {each.end_offset - 1}"
    return each.queue, each.partition, each.rule, each.messages, offsets, each.missed, ", ".join(groups) or None
