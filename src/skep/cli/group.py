"""`skep group`: groups, how far behind they are, and moving them."""

from collections.abc import Sequence
from operator import attrgetter

from skep import Skep
from skep.cli.ask import confirm
from skep.cli.connect import connect
from skep.cli.show import SHOWN_LANES, counted, one_line, say, show_json, show_table
from skep.config import Config
from skep.errors import NotFound
from skep.message import GroupStatus, Lag


def list_groups(config: Config, queue: str | None, *, as_json: bool) -> None:
    with connect(config) as mq:
        groups = mq.groups(queue=queue)
    if as_json:
        show_json(groups)
    else:
        _show_groups(groups)


def _show_groups(groups: Sequence[GroupStatus]) -> None:
    headers = ("group", "queue", "starts at", "partitions", "lag", "leased", "last consumed", "dead letters")
    rows = (
        (g.group, g.queue, g.mode, g.partitions, g.lag, g.leased, g.last_consumed_at, g.dead_letters) for g in groups
    )
    show_table(headers, rows)


def show(config: Config, name: str, queue: str | None, *, limit: int | None, as_json: bool) -> None:
    with connect(config) as mq:
        groups, lanes = _find(mq, name, queue)
    lanes.sort(key=attrgetter("lag"), reverse=True)
    shown = lanes[: limit or (None if as_json else SHOWN_LANES)]
    if as_json:
        show_json({"group": name, "queues": groups, "lanes": shown})
        return
    _show_groups(groups)
    _show_lanes(shown)
    if len(shown) < len(lanes):
        say(f"and {counted(len(lanes) - len(shown), 'more partition')}, less behind; --limit {len(lanes)} shows all")


def _find(mq: Skep, name: str, queue: str | None) -> tuple[list[GroupStatus], list[Lag]]:
    groups, lanes = mq.groups(name, queue), mq.lag(name, queue)
    if not groups and not lanes:
        where = f' on queue "{queue}"' if queue else ""
        raise NotFound(f'there is no group "{name}"{where}', hint="`skep group list` shows all")
    return groups, lanes


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


def seek(config: Config, name: str, queue: str, position: str, *, partition: str | None, as_json: bool) -> None:
    with connect(config) as mq:
        moved = mq.seek(name, queue, position, partition=partition)
    if as_json:
        show_json({"group": name, "queue": queue, "partition": partition, "position": position, "moved": moved})
    else:
        place = queue if partition is None else f"{queue}/{partition}"
        say(one_line(f"group {name} is at {position} of {place}: {counted(moved, 'partition')} moved"))


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
