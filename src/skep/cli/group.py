"""`skep group`: groups, their health and their cursors. Commands on subscriptions are in subscription.py."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from skep.cli.confirm import confirm
from skep.cli.connect import connect
from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    Group,
    Json,
    Limit,
    OptionalQueue,
    Partition,
    Queue,
    QueueFilter,
    Yes,
    choose,
)
from skep.cli.show import SHOWN_PARTITIONS, Cell, as_dict, counted, one_line, say, show_json, show_table
from skep.cli.times import parse_duration
from skep.errors import NotFound
from skep.message import DEFAULT_PARTITION, GroupStatus, Lag, PendingGroup, Status, Subscription

if TYPE_CHECKING:
    from skep import Skep

STYLES: dict[Status, str] = {"ACTIVE": "green", "PAUSED": "yellow", "CANCELLED": "dim", "DEAD": "bold red"}

group_app = typer.Typer(help="Manage groups: health, lag, cursors and subscriptions.", no_args_is_help=True)


@group_app.command("list")
def list_groups(
    queue: QueueFilter = None, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """List the groups and their health on each queue, unhealthy groups first."""
    with connect(database_url, data_dir) as mq:
        groups = sorted(mq.groups(queue=queue), key=_severity)
    if as_json:
        show_json(groups)
    else:
        _show_groups(groups)


def _severity(group: GroupStatus) -> tuple[int, int, str, str]:
    """Return a sort key: the most serious problem first, then the largest lag."""
    problems = (
        group.status == "DEAD",
        group.status == "ACTIVE" and group.missed_heartbeats > 0,
        group.status != "CANCELLED" and group.missed + group.dead_letters > 0,
        group.status == "PAUSED",
        group.status == "ACTIVE",
        True,
    )
    return problems.index(True), -group.lag, group.group, group.queue


def _show_groups(groups: Sequence[GroupStatus]) -> None:
    headers = (
        *("group", "queue", "status", "lag", "leased", "processed", "missed messages", "dead letters"),
        *("last heartbeat", "missed heartbeats", "oldest pending"),
    )
    show_table(headers, (_group_row(group) for group in groups))


def _group_row(g: GroupStatus) -> tuple[Cell, ...]:
    status = _status(g.status, overdue=g.missed_heartbeats > 0)
    amounts = (g.lag, g.leased, g.processed, g.missed, g.dead_letters)
    return g.group, g.queue, status, *amounts, g.last_heartbeat_at, g.missed_heartbeats, g.oldest_pending_at


def _status(status: Status, *, overdue: bool = False) -> Text:
    return Text(status, "yellow" if overdue else STYLES[status])


@group_app.command()
def show(
    group: Group,
    queue: QueueFilter = None,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the subscriptions of a group and its lag by partition, largest lag first."""
    with connect(database_url, data_dir) as mq:
        groups, partitions, subscriptions = _find(mq, group, queue)
    groups.sort(key=_severity)
    partitions.sort(key=attrgetter("lag"), reverse=True)
    shown = partitions[: limit or (None if as_json else SHOWN_PARTITIONS)]
    if as_json:
        show_json({"group": group, "subscriptions": subscriptions, "queues": groups, "partition_list": shown})
        return
    for subscription in subscriptions:
        say(describe(subscription))
    _show_groups(groups)
    _show_partitions(shown)
    if len(shown) < len(partitions):
        more = counted(len(partitions) - len(shown), "more partition")
        say(f"and {more} with less lag; --limit {len(partitions)} shows all")


def _find(mq: "Skep", name: str, queue: str | None) -> tuple[list[GroupStatus], list[Lag], list[Subscription]]:
    groups, partitions = mq.groups(name, queue), mq.lag(name, queue)
    subscriptions = [each for each in mq.subscriptions(name) if queue is None or each.queue in (queue, None)]
    if not (groups or partitions or (queue is None and subscriptions)):
        where = f' on queue "{queue}"' if queue else ""
        raise NotFound(f'there is no group "{name}"{where}', hint="`skep group list` shows all")
    return groups, partitions, subscriptions


def describe(each: Subscription) -> str:
    """Return the settings of a subscription in one line."""
    partition = f"/{each.partition}" if each.partition is not None else ""
    where = f"{each.queue}{partition}" if each.queue is not None else label_text(each.namespace, each.task)
    start = next((str(at) for at in (each.start_at, each.start_offset) if at is not None), "")
    parts = (
        f"group {each.group} on {where}: {each.status}",
        f"starts at {each.mode} {start}".rstrip(),
        "with backfill" if each.backfill else "without backfill",
        f"heartbeat every {each.heartbeat_interval:g} s",
        f"dead after {each.heartbeat_timeout:g} s and {counted(each.miss_threshold, 'missed heartbeat')}",
        *_retry_policy(each),
    )
    return one_line(", ".join(parts))


def label_text(namespace: str | None, task: str | None) -> str:
    return f"{namespace or '*'}.{task or '*'}"


def _retry_policy(each: Subscription) -> Iterator[str]:
    """Yield the retry settings that override the options of the queue."""
    if each.retry_limit is not None:
        yield f"retry limit {each.retry_limit}"
    if each.retry_delay is not None:
        yield f"retry delay {each.retry_delay:g} s"
    if each.max_retry_delay is not None:
        yield f"max retry delay {each.max_retry_delay:g} s"
    if each.retry_jitter is not None:
        yield f"retry jitter {each.retry_jitter:g}"


def _show_partitions(partitions: Sequence[Lag]) -> None:
    headers = ("queue", "partition", "lag", "leased", "cursor", "last offset", "last consumed")
    show_table(headers, (_partition_row(each) for each in partitions))


def _partition_row(each: Lag) -> tuple[Cell, ...]:
    offsets = str(each.cursor), str(each.last_offset)
    return each.queue, each.partition, each.lag, each.leased, *offsets, each.last_consumed_at


@group_app.command()
def seek(
    group: Group,
    queue: Queue,
    position: Annotated[
        str,
        typer.Argument(
            help="beginning, end, a time or an offset.", autocompletion=choose("beginning", "end"), show_default=False
        ),
    ],
    partition: Partition = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Move the cursors of a group to another position of a queue. Its leases there end."""
    with connect(database_url, data_dir) as mq:
        moved = mq.seek(group, queue, position, partition=partition)
    if as_json:
        where = {"group": group, "queue": queue, "partition": partition, "position": position}
        show_json(where | {"moved": moved.partitions, "skipped": moved.skipped, "again": moved.again})
        return
    where = queue if partition is None else f"{queue}/{partition}"
    say(one_line(f"group {group} is at {position} of {where}: {counted(moved.partitions, 'partition')} moved"))
    if moved.skipped:
        say(f"{counted(moved.skipped, 'message')} skipped")
    if moved.again:
        say(f"{counted(moved.again, 'completed message')} will be delivered again")


@group_app.command()
def delete(
    group: Group,
    queue: QueueFilter = None,
    keep_subscription: Annotated[
        bool, typer.Option("--keep-subscription", help="Keep the subscription, delete only the progress.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete a group with its progress and its subscriptions, on one queue or on all."""
    with connect(database_url, data_dir) as mq:
        _find(mq, group, queue)
        if not yes:
            where = f" on queue {queue}" if queue else ""
            confirm(one_line(f"Delete the progress of group {group}{where}?"))
        deleted = mq.delete_group(group, queue, keep_subscription=keep_subscription)
    if as_json:
        show_json({"group": group, "queue": queue, "forgotten": deleted})
    else:
        say(one_line(f"group {group} deleted, with its progress in {counted(deleted, 'partition')}"))


@group_app.command()
def blocked(
    queue: OptionalQueue = None,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the backlog of each group by partition, and which group retention waits for."""
    with connect(database_url, data_dir) as mq:
        if queue is not None:
            mq.queue(queue).status()  # raises NotFound if the queue does not exist
        found = sorted(mq.pending_groups(queue), key=lambda each: (not each.is_floor, -each.pending))
    shown = found[: limit or (None if as_json else SHOWN_PARTITIONS)]
    if as_json:
        show_json(shown)
        return
    headers = ("queue", "partition", "group", "status", "pending", "leased", "oldest pending", "retention waits")
    show_table(headers, (_blocked_row(each) for each in shown))
    if len(shown) < len(found):
        say(f"and {len(found) - len(shown):,} more with a smaller backlog; --limit {len(found)} shows all")


def _blocked_row(each: PendingGroup) -> tuple[Cell, ...]:
    status, waits = _status(each.status), "yes" if each.is_floor else "no"
    return each.queue, each.partition, each.group, status, each.pending, each.leased, each.oldest_pending_at, waits


@group_app.command()
def explain(
    group: Group,
    queue: Queue,
    partition: Annotated[str, typer.Argument(help="One partition of the queue.")] = DEFAULT_PARTITION,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Explain where a group starts in a partition, and which subscription decides it."""
    with connect(database_url, data_dir) as mq:
        found = mq.explain_start(group, queue, partition)
    if as_json:
        show_json({"group": group, "queue": queue, "partition": partition} | as_dict(found))
        return
    where = f"group {group} on {queue}/{partition}"
    if found.scope is None:
        say(one_line(f"{where}: not subscribed yet; the first pop stores a subscription"))
    else:
        start = next((str(at) for at in (found.start_at, found.asked_offset) if at is not None), "")
        decides = f"decided by the subscription to the {found.scope}, stored {found.subscribed_at}"
        say(one_line(f"{where}: {decides}, mode {found.mode} {start}".rstrip()))
    if found.start_offset is None and found.scope is not None:
        say("the partition does not exist yet")
    elif found.start_offset is not None:
        say(f"it {'started' if found.has_started else 'will start'} at offset {found.start_offset}")


@group_app.command()
def defaults(
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="all|new",
            help="Start position of groups that do not give one.",
            autocompletion=choose("all", "new"),
            show_default=False,
        ),
    ] = None,
    max_poll_interval: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Longest time between two polls: 2s. The mode new starts twice as far back.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show or set the default start position of new groups."""
    seconds = None if max_poll_interval is None else parse_duration(max_poll_interval).total_seconds()
    with connect(database_url, data_dir) as mq:
        if mode is None and seconds is None:
            found = mq.defaults()
        else:
            found = mq.configure_defaults(subscription_mode=mode, max_poll_interval=seconds)
    if as_json:
        show_json(found)
        return
    interval = found.max_poll_interval
    new = f"new starts {2 * interval:g} s before the first contact, twice the poll interval of {interval:g} s"
    say(f"default start: {found.subscription_mode}; {new}")
