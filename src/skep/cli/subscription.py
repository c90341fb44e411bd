"""Commands of `skep group` on subscriptions, from subscribe to cancel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from skep.cli.confirm import confirm
from skep.cli.connect import connect
from skep.cli.group import describe, label_text
from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    Group,
    Json,
    Namespace,
    OptionalQueue,
    Partition,
    Queue,
    QueueFilter,
    Task,
    Yes,
    choose,
)
from skep.cli.queue import parse_options
from skep.cli.show import counted, one_line, say, show_json
from skep.cli.times import parse_duration
from skep.message import Subscription

if TYPE_CHECKING:
    from skep import Skep


Mode = Annotated[
    str | None,
    typer.Option(
        metavar="all|new|timestamp|offset|message_id",
        help="Start position.",
        autocompletion=choose("all", "new", "timestamp", "offset", "message_id"),
        show_default=False,
    ),
]
Start = Annotated[
    str | None,
    typer.Option("--from", metavar="now|TIME|OFFSET|ID", help="Value of the start position.", show_default=False),
]
Backfill = Annotated[
    bool | None,
    typer.Option("--backfill/--no-backfill", help="Keep older messages for the group.", show_default=False),
]
HeartbeatInterval = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time between two heartbeats: 60s, 5m.", show_default=False)
]
HeartbeatTimeout = Annotated[
    str | None, typer.Option(metavar="TIME", help="Longest time without a heartbeat.", show_default=False)
]
MissThreshold = Annotated[
    int | None, typer.Option(help="Missed heartbeats after which the group is declared dead.", show_default=False)
]
RetryLimit = Annotated[
    int | None,
    typer.Option(min=0, help="Retries of a failed message. Default: the queue's option.", show_default=False),
]
RetryDelay = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Delay before the first retry. It doubles each time.", show_default=False),
]
MaxRetryDelay = Annotated[
    str | None, typer.Option(metavar="TIME", help="Longest delay before a retry.", show_default=False)
]
RetryJitter = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of the delay that is random.", show_default=False)
]


def subscribe(
    group: Group,
    queue: OptionalQueue = None,
    partition: Partition = None,
    namespace: Namespace = None,
    task: Task = None,
    mode: Mode = None,
    start: Start = None,
    backfill: Backfill = None,
    heartbeat_interval: HeartbeatInterval = None,
    heartbeat_timeout: HeartbeatTimeout = None,
    miss_threshold: MissThreshold = None,
    retry_limit: RetryLimit = None,
    retry_delay: RetryDelay = None,
    max_retry_delay: MaxRetryDelay = None,
    retry_jitter: RetryJitter = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Store a subscription if it does not exist yet, and show it."""
    with connect(database_url, data_dir) as mq:
        stored = mq.subscribe(
            group,
            queue,
            partition=partition,
            namespace=namespace,
            task=task,
            mode=mode,
            start_from=start,
            backfill=backfill,
            heartbeat_interval=_seconds(heartbeat_interval),
            heartbeat_timeout=_seconds(heartbeat_timeout),
            miss_threshold=miss_threshold,
            retry_limit=retry_limit,
            retry_delay=_seconds(retry_delay),
            max_retry_delay=_seconds(max_retry_delay),
            retry_jitter=retry_jitter,
        )
    if as_json:
        show_json(stored)
    else:
        say(describe(stored))


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_duration(text).total_seconds()


def configure(
    group: Group,
    options: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="retry_limit=8, retry_delay=1, max_retry_delay=60, retry_jitter=0.25; null is the queue's option.",
            show_default=False,
        ),
    ],
    queue: QueueFilter = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Change the retry policy of a group."""
    parsed = parse_options(options)
    with connect(database_url, data_dir) as mq:
        changed = mq.configure_group(group, parsed, queue, namespace=namespace, task=task)
    _show_changed(changed, as_json=as_json)


def pause(
    group: Group,
    queue: OptionalQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Stop delivery to a group until it is resumed. Its backlog is kept."""
    with connect(database_url, data_dir) as mq:
        changed = mq.pause(group, queue, namespace=namespace, task=task)
    _show_changed(changed, f"{_scope(group, queue, namespace, task)}: nothing to pause", as_json=as_json)


def resume(
    group: Group,
    queue: OptionalQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Resume a paused or dead group at its cursor."""
    with connect(database_url, data_dir) as mq:
        changed = mq.resume(group, queue, namespace=namespace, task=task)
    _show_changed(changed, f"{_scope(group, queue, namespace, task)}: nothing to resume", as_json=as_json)


def heartbeat(
    group: Group,
    queue: OptionalQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Record a heartbeat for a group whose consumers cannot send one."""
    with connect(database_url, data_dir) as mq:
        changed = mq.heartbeat(group, queue, namespace=namespace, task=task)
    _show_changed(changed, f"{_scope(group, queue, namespace, task)}: nothing to heartbeat", as_json=as_json)


def cancel(
    group: Group,
    queue: OptionalQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Cancel a subscription. No messages are kept for it until the group subscribes again."""
    scope = _scope(group, queue, namespace, task)
    if not yes:
        confirm(one_line(f"Cancel {scope}? No messages will be kept for it."), "cancelled")
    with connect(database_url, data_dir) as mq:
        changed = mq.cancel(group, queue, namespace=namespace, task=task)
    _show_changed(changed, f"{scope}: nothing to cancel", as_json=as_json)


def _scope(group: str, queue: str | None, namespace: str | None, task: str | None) -> str:
    if queue or namespace or task:
        return f"group {group} on {queue or label_text(namespace, task)}"
    return f"group {group} on all its queues"


def _show_changed(changed: Sequence[Subscription], none: str = "", *, as_json: bool) -> None:
    """Show the subscriptions that changed, or the text `none` if there are no such subscriptions."""
    if as_json:
        show_json(changed)
        return
    for subscription in changed:
        say(describe(subscription))
    if none and not changed:
        say(one_line(none))


def remove(
    group: Group,
    queue: OptionalQueue = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Cancel all subscriptions of a group as an administrator, and show the size of its backlog."""
    scope = _scope(group, queue, None, None)
    with connect(database_url, data_dir) as mq:
        if not yes:
            confirm(one_line(f"Remove {scope}, with {_backlog(mq, group, queue)} pending?"), "removed")
        released = mq.cancel_group(group, queue)
    if as_json:
        show_json({"group": group, "queue": queue, "released": released})
    else:
        say(one_line(f"{scope} removed, {counted(released, 'message')} released"))


def _backlog(mq: "Skep", group: str, queue: str | None) -> str:
    return counted(sum(each.lag for each in mq.groups(group, queue)), "message")


def force_complete(
    group: Group,
    queue: Queue,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="30m, 2h, 1d.", show_default=False)],
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Mark messages older than this age as completed by a group. Leased messages stay leased."""
    age = parse_duration(older_than)
    scope = _scope(group, queue, None, None)
    if not yes:
        confirm(one_line(f"Mark messages older than {older_than} as completed by {scope}?"), "completed")
    with connect(database_url, data_dir) as mq:
        completed = mq.force_complete(group, queue, age)
    if as_json:
        where = {"group": group, "queue": queue, "namespace": None, "task": None}
        show_json(where | {"older_than": age.total_seconds(), "completed": completed})
    else:
        say(one_line(f"{scope}: {counted(completed, 'message')} older than {older_than} completed"))
