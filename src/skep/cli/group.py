"""`skep group`: groups, how they are, how far behind, and moving them. Their life is in life.py."""

from collections.abc import Sequence
from operator import attrgetter

from rich.text import Text

from skep import Skep
from skep.cli.ask import confirm
from skep.cli.connect import connect
from skep.cli.life import describe
from skep.cli.show import SHOWN_LANES, Cell, as_dict, counted, one_line, say, show_json, show_table
from skep.config import Config
from skep.errors import NotFound
from skep.message import GroupStatus, Lag, PendingGroup, Status, Subscription

STYLES: dict[Status, str] = {"ACTIVE": "green", "PAUSED": "yellow", "CANCELLED": "dim", "DEAD": "bold red"}


def list_groups(config: Config, queue: str | None, *, as_json: bool) -> None:
    with connect(config) as mq:
        groups = sorted(mq.groups(queue=queue), key=_trouble)
    if as_json:
        show_json(groups)
    else:
        _show_groups(groups)


def _trouble(group: GroupStatus) -> tuple[int, int, str, str]:
    """Order by who needs help most; among equals, who is furthest behind."""
    signs = (
        group.status == "DEAD",
        group.status == "ACTIVE" and group.missed_heartbeats > 0,
        group.status != "CANCELLED" and group.missed + group.dead_letters > 0,
        group.status == "PAUSED",
        group.status == "ACTIVE",
        True,
    )
    return signs.index(True), -group.lag, group.group, group.queue


def _show_groups(groups: Sequence[GroupStatus]) -> None:
    headers = (
        *("group", "queue", "status", "lag", "leased", "processed", "missed", "dead letters"),
        *("last sign", "misses", "oldest pending"),
    )
    show_table(headers, (_health(group) for group in groups))


def _health(g: GroupStatus) -> tuple[Cell, ...]:
    status = _status(g.status, worried=g.missed_heartbeats > 0)
    amounts = (g.lag, g.leased, g.processed, g.missed, g.dead_letters)
    return g.group, g.queue, status, *amounts, g.last_heartbeat_at, g.missed_heartbeats, g.oldest_pending_at


def _status(status: Status, *, worried: bool = False) -> Text:
    return Text(status, "yellow" if worried else STYLES[status])


def show(config: Config, name: str, queue: str | None, *, limit: int | None, as_json: bool) -> None:
    with connect(config) as mq:
        groups, lanes, subscriptions = _find(mq, name, queue)
    groups.sort(key=_trouble)
    lanes.sort(key=attrgetter("lag"), reverse=True)
    shown = lanes[: limit or (None if as_json else SHOWN_LANES)]
    if as_json:
        show_json({"group": name, "subscriptions": subscriptions, "queues": groups, "lanes": shown})
        return
    for subscription in subscriptions:
        say(describe(subscription))
    _show_groups(groups)
    _show_lanes(shown)
    if len(shown) < len(lanes):
        say(f"and {counted(len(lanes) - len(shown), 'more partition')}, less behind; --limit {len(lanes)} shows all")


def _find(mq: Skep, name: str, queue: str | None) -> tuple[list[GroupStatus], list[Lag], list[Subscription]]:
    groups, lanes = mq.groups(name, queue), mq.lag(name, queue)
    subscriptions = [each for each in mq.subscriptions(name) if queue is None or each.queue in (queue, None)]
    if not (groups or lanes or (queue is None and subscriptions)):
        where = f' on queue "{queue}"' if queue else ""
        raise NotFound(f'there is no group "{name}"{where}', hint="`skep group list` shows all")
    return groups, lanes, subscriptions


def _show_lanes(lanes: Sequence[Lag]) -> None:
    headers = ("queue", "partition", "lag", "leased", "cursor", "last offset", "last consumed")
    rows = (
        (
            lane.queue,
            lane.partition,
            lane.lag,
            lane.leased,
            str(lane.cursor),
            str(lane.last_offset),
            lane.last_consumed_at,
        )
        for lane in lanes
    )
    show_table(headers, rows)


def explain(config: Config, name: str, queue: str, partition: str, *, as_json: bool) -> None:
    with connect(config) as mq:
        found = mq.explain_start(name, queue, partition)
    if as_json:
        show_json({"group": name, "queue": queue, "partition": partition} | as_dict(found))
        return
    where = f"group {name} on {queue}/{partition}"
    if found.scope is None:
        say(one_line(f"{where}: no subscription decides yet; its first pop stores one"))
    else:
        start = next((str(at) for at in (found.start_at, found.asked_offset) if at is not None), "")
        decides = f"its subscription to the {found.scope} decides, stored {found.subscribed_at}"
        say(one_line(f"{where}: {decides}, mode {found.mode} {start}".rstrip()))
    if found.start_offset is None and found.scope is not None:
        say("the partition does not exist yet")
    elif found.start_offset is not None:
        say(f"it {'started' if found.has_started else 'will start'} at offset {found.start_offset}")


def seek(config: Config, name: str, queue: str, position: str, *, partition: str | None, as_json: bool) -> None:
    with connect(config) as mq:
        moved = mq.seek(name, queue, position, partition=partition)
    if as_json:
        where = {"group": name, "queue": queue, "partition": partition, "position": position}
        show_json(where | {"moved": moved.partitions, "skipped": moved.skipped, "again": moved.again})
    else:
        place = queue if partition is None else f"{queue}/{partition}"
        say(one_line(f"group {name} is at {position} of {place}: {counted(moved.partitions, 'partition')} moved"))
        if moved.skipped:
            say(f"{counted(moved.skipped, 'message')} skipped")
        if moved.again:
            say(f"{counted(moved.again, 'completed message')} delivered again")


def delete(config: Config, name: str, queue: str | None, *, keep_subscription: bool, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        _find(mq, name, queue)
        if not yes:
            where = f" on queue {queue}" if queue else ""
            confirm(one_line(f"Forget what group {name} has done{where}?"))
        forgotten = mq.delete_group(name, queue, keep_subscription=keep_subscription)
    if as_json:
        show_json({"group": name, "queue": queue, "forgotten": forgotten})
    else:
        say(one_line(f"group {name} deleted, {counted(forgotten, 'partition')} forgotten"))


def show_blocked(config: Config, queue: str | None, *, limit: int | None, as_json: bool) -> None:
    with connect(config) as mq:
        if queue is not None:
            mq.queue(queue).status()  # raises if there is none
        found = sorted(mq.pending_groups(queue), key=lambda each: (not each.is_floor, -each.pending))
    shown = found[: limit or (None if as_json else SHOWN_LANES)]
    if as_json:
        show_json(shown)
        return
    headers = ("queue", "partition", "group", "status", "pending", "leased", "oldest pending", "holds it back")
    show_table(headers, (_holding(each) for each in shown))
    if len(shown) < len(found):
        say(f"and {len(found) - len(shown):,} more, with less; --limit {len(found)} shows all")


def _holding(each: PendingGroup) -> tuple[Cell, ...]:
    status, last = _status(each.status), "yes" if each.is_floor else "no"
    return each.queue, each.partition, each.group, status, each.pending, each.leased, each.oldest_pending_at, last
