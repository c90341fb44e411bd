"""`skep queue`: its commands."""

from typing import Annotated

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Limit, OfGroup, Partition, Queue, SomeQueue, Yes
from skep.config import Config

queue_app = typer.Typer(
    help="Queues, their options and sizes, and what becomes of their messages.", no_args_is_help=True
)


@queue_app.command("list")
def queue_list(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """List the queues."""
    from skep.cli.queue import list_queues

    list_queues(Config.load_client(database_url, data_dir), as_json=as_json)


@queue_app.command("show")
def queue_show(
    queue: Queue,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show a queue: its options, and its partitions with their sizes."""
    from skep.cli.queue import show

    show(Config.load_client(database_url, data_dir), queue, limit=limit, as_json=as_json)


@queue_app.command("configure")
def queue_configure(
    queue: Queue,
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="lease_time=60, namespace=shop, …", show_default=False),
    ] = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Make a queue, or change the options that are given; null takes one back."""
    from skep.cli.queue import configure

    configure(Config.load_client(database_url, data_dir), queue, options or [], as_json=as_json)


@queue_app.command("delete")
def queue_delete(
    queue: Queue,
    partition: Partition = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete a queue, or one partition of it, with everything in it but its dead letters."""
    from skep.cli.queue import delete

    delete(Config.load_client(database_url, data_dir), queue, partition, yes=yes, as_json=as_json)


@queue_app.command("clear")
def queue_clear(
    queue: Queue,
    partition: Partition = None,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete every message that is in a queue now, and keep the rest; groups go on behind them."""
    from skep.cli.queue import clear

    clear(Config.load_client(database_url, data_dir), queue, partition, yes=yes, as_json=as_json)


@queue_app.command("fanout")
def queue_fanout(
    queue: Queue,
    partition: Partition = None,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="The first offset.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many messages to show.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show for each message how many groups require it, how many have completed it, and who owes it."""
    from skep.cli.queue import fanout

    config = Config.load_client(database_url, data_dir)
    fanout(config, queue, partition, start=start, limit=limit, as_json=as_json)


@queue_app.command("retention")
def queue_retention(
    queue: SomeQueue = None,
    limit: Limit = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show what retention would delete now, by which rule, and what groups would miss."""
    from skep.cli.retention import show

    show(Config.load_client(database_url, data_dir), queue, limit=limit, as_json=as_json)


@queue_app.command("history")
def queue_history(
    queue: Queue,
    group: OfGroup = None,
    since: Annotated[str, typer.Option(metavar="AGE", help="How far back: 30m, 2h, 1d.")] = "1h",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show rates and lags over time, of a queue or of a group on it."""
    from skep.cli.history import show

    show(Config.load_client(database_url, data_dir), queue, group, since, as_json=as_json)
