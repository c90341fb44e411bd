"""`skep group`: its commands."""

from typing import Annotated

import typer

from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    Group,
    Json,
    Limit,
    MaxRetryDelay,
    Namespace,
    OfQueue,
    Partition,
    Queue,
    RetryDelay,
    RetryJitter,
    RetryLimit,
    SomeQueue,
    Task,
    Yes,
    choose,
)
from skep.config import Config
from skep.message import DEFAULT_PARTITION

group_app = typer.Typer(help="Groups, how they are, how far behind, and their life.", no_args_is_help=True)


@group_app.command("list")
def group_list(
    queue: OfQueue = None, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """List the groups and how they are on each queue, those in trouble first."""
    from skep.cli.group import list_groups

    list_groups(Config.load_client(database_url, data_dir), queue, as_json=as_json)


@group_app.command("show")
def group_show(
    group: Group,
    queue: OfQueue = None,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show what a group has still to do, the lanes that are most behind first."""
    from skep.cli.group import show

    show(Config.load_client(database_url, data_dir), group, queue, limit=limit, as_json=as_json)


@group_app.command("seek")
def group_seek(
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
    """Move a group to another place of a queue; what it has leased is dropped."""
    from skep.cli.group import seek

    config = Config.load_client(database_url, data_dir)
    seek(config, group, queue, position, partition=partition, as_json=as_json)


@group_app.command("delete")
def group_delete(
    group: Group,
    queue: OfQueue = None,
    keep_subscription: Annotated[
        bool, typer.Option("--keep-subscription", help="Remember where it starts, forget only what it has done.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Forget a group, on one queue or everywhere."""
    from skep.cli.group import delete

    config = Config.load_client(database_url, data_dir)
    delete(config, group, queue, keep_subscription=keep_subscription, yes=yes, as_json=as_json)


@group_app.command("blocked")
def group_blocked(
    queue: SomeQueue = None,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show who holds back what: each group that owes something, and whether messages are kept for it."""
    from skep.cli.group import show_blocked

    show_blocked(Config.load_client(database_url, data_dir), queue, limit=limit, as_json=as_json)


@group_app.command("subscribe")
def group_subscribe(
    group: Group,
    queue: SomeQueue = None,
    partition: Partition = None,
    namespace: Namespace = None,
    task: Task = None,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="all|new|timestamp|offset|message_id",
            help="Where to start.",
            autocompletion=choose("all", "new", "timestamp", "offset", "message_id"),
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="now|TIME|OFFSET|ID", help="Where exactly.", show_default=False)
    ] = None,
    backfill: Annotated[
        bool | None,
        typer.Option("--backfill/--no-backfill", help="What was there before is kept for it.", show_default=False),
    ] = None,
    heartbeat_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often it gives a sign of life: 60s, 5m.", show_default=False)
    ] = None,
    heartbeat_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it may be silent.", show_default=False)
    ] = None,
    miss_threshold: Annotated[
        int | None, typer.Option(help="After so many missed signs it is dead.", show_default=False)
    ] = None,
    retry_limit: RetryLimit = None,
    retry_delay: RetryDelay = None,
    max_retry_delay: MaxRetryDelay = None,
    retry_jitter: RetryJitter = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Store where a group starts and how it lives, if that is not stored yet; shows what is."""
    from skep.cli.life import Scope, Wish, subscribe

    config = Config.load_client(database_url, data_dir)
    life = (heartbeat_interval, heartbeat_timeout, miss_threshold)
    wish = Wish(partition, mode, start, backfill, *life, retry_limit, retry_delay, max_retry_delay, retry_jitter)
    subscribe(config, Scope(group, queue, namespace, task), wish, as_json=as_json)


@group_app.command("configure")
def group_configure(
    group: Group,
    options: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="retry_limit=8, retry_delay=1, max_retry_delay=60, retry_jitter=0.25; null is the queue's option.",
            show_default=False,
        ),
    ],
    queue: OfQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Change the retry policy of a group."""
    from skep.cli.life import Scope, configure

    config = Config.load_client(database_url, data_dir)
    configure(config, Scope(group, queue, namespace, task), options, as_json=as_json)


@group_app.command("explain")
def group_explain(
    group: Group,
    queue: Queue,
    partition: Annotated[str, typer.Argument(help="One partition of the queue.")] = DEFAULT_PARTITION,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Explain where a group starts in a partition, and which subscription decides it."""
    from skep.cli.group import explain

    explain(Config.load_client(database_url, data_dir), group, queue, partition, as_json=as_json)


@group_app.command("pause")
def group_pause(
    group: Group,
    queue: SomeQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Deliver nothing to a group for now; what it is owed stays owed."""
    from skep.cli.life import Scope, change

    config = Config.load_client(database_url, data_dir)
    change(config, "pause", Scope(group, queue, namespace, task), as_json=as_json)


@group_app.command("resume")
def group_resume(
    group: Group,
    queue: SomeQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Go on where a group was paused, or died."""
    from skep.cli.life import Scope, change

    config = Config.load_client(database_url, data_dir)
    change(config, "resume", Scope(group, queue, namespace, task), as_json=as_json)


@group_app.command("heartbeat")
def group_heartbeat(
    group: Group,
    queue: SomeQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Give a sign of life for a group whose consumers cannot."""
    from skep.cli.life import Scope, change

    config = Config.load_client(database_url, data_dir)
    change(config, "heartbeat", Scope(group, queue, namespace, task), as_json=as_json)


@group_app.command("cancel")
def group_cancel(
    group: Group,
    queue: SomeQueue = None,
    namespace: Namespace = None,
    task: Task = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """End a subscription: nothing is kept for it any more, until it is subscribed anew."""
    from skep.cli.life import Scope, change

    config = Config.load_client(database_url, data_dir)
    change(config, "cancel", Scope(group, queue, namespace, task), yes=yes, as_json=as_json)


@group_app.command("remove")
def group_remove(
    group: Group,
    queue: SomeQueue = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Cancel a group as an administrator, and say how many messages waited for it."""
    from skep.cli.life import Scope, remove

    config = Config.load_client(database_url, data_dir)
    remove(config, Scope(group, queue, None, None), yes=yes, as_json=as_json)


@group_app.command("force-complete")
def group_force_complete(
    group: Group,
    queue: Queue,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="30m, 2h, 1d.", show_default=False)],
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Count what is older than this as done by a group; what it has leased stays leased."""
    from skep.cli.life import force_complete

    config = Config.load_client(database_url, data_dir)
    force_complete(config, group, queue, older_than, yes=yes, as_json=as_json)


@group_app.command("defaults")
def group_defaults(
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="all|new",
            help="Where groups start that do not say it.",
            autocompletion=choose("all", "new"),
            show_default=False,
        ),
    ] = None,
    max_poll_interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="new looks back twice as far: 2s.", show_default=False)
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show what groups get that do not say where they start, or change it; those that are there keep theirs."""
    from skep.cli.defaults import run

    run(Config.load_client(database_url, data_dir), mode, max_poll_interval, as_json=as_json)
