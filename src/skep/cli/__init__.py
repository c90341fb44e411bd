"""The command line: the only place that prints, exits and handles signals. Bodies are imported when they are called."""

import os
import sys
from typing import Annotated

import typer

import skep
from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    Group,
    Json,
    JsonLines,
    Limit,
    OfGroup,
    OfQueue,
    Partition,
    Queue,
    Yes,
)
from skep.config import Config
from skep.message import DEFAULT_PARTITION, QUEUE_MODE

app = typer.Typer(
    help="A partitioned message queue and pub/sub log inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
queue_app = typer.Typer(help="Queues, their options and sizes.", no_args_is_help=True)
group_app = typer.Typer(help="Groups, how far behind they are, and moving them.", no_args_is_help=True)
dlq_app = typer.Typer(help="Dead letters: what groups have given up.", no_args_is_help=True)
app.add_typer(queue_app, name="queue")
app.add_typer(group_app, name="group")
app.add_typer(dlq_app, name="dlq")


def main() -> None:
    """Run the command line; an error is one line and a hint, never a traceback (unless SKEP_DEBUG=1)."""
    try:
        app()
    except Exception as error:
        if os.environ.get("SKEP_DEBUG"):
            raise
        from skep.cli.report import show_error

        show_error(error)
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"skep {skep.__version__}")
        raise typer.Exit


@app.callback()
def _skep(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def serve(database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Run Skep on an embedded PostgreSQL, or on yours."""
    from skep.cli.serve import run

    run(Config.load(database_url=database_url, data_dir=data_dir))


@app.command()
def install(
    database_url: DatabaseUrl = None,
    print_sql: Annotated[bool, typer.Option("--print", help="Print the SQL instead of running it.")] = False,
) -> None:
    """Install or upgrade Skep in a PostgreSQL database."""
    from skep.cli.install import run

    run(Config.load(database_url=database_url), print_sql=print_sql)


@app.command()
def push(
    queue: Queue,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAYLOAD]...",
            help="JSON; without any, or with -, one JSON value per line of standard input.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[str, typer.Option(help="The lane of the messages.")] = DEFAULT_PARTITION,
    transaction_id: Annotated[
        str | None, typer.Option(help="Stores the message once, however often it is pushed.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A header; may be repeated.", show_default=False)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Payloads are any text, pushed as strings.")] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push messages to a queue."""
    from skep.cli.push import Template, parse_headers, run

    template = Template(partition, transaction_id, parse_headers(header or []), text)
    run(Config.load(database_url=database_url, data_dir=data_dir), queue, payloads or [], template, as_json=as_json)


@app.command()
def pop(
    queue: Annotated[str | None, typer.Argument(help="The name of the queue.", show_default=False)] = None,
    group: Annotated[
        str, typer.Option(help="Read for this group; without one, share the queue with others.", show_default=False)
    ] = QUEUE_MODE,
    batch: Annotated[int, typer.Option(help="How many messages at most.")] = 1,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first one.")] = 0,
    partition: Partition = None,
    namespace: Annotated[
        str | None, typer.Option(help="Instead of a queue: all of this namespace.", show_default=False)
    ] = None,
    task: Annotated[str | None, typer.Option(help="Instead of a queue: all of this task.", show_default=False)] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Messages are done once they are printed.")] = True,
    as_json: JsonLines = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Take messages off a queue and print them."""
    from skep.cli.pop import run
    from skep.client.source import Source

    config = Config.load(database_url=database_url, data_dir=data_dir)
    source = Source(queue, group, partition, namespace, task)
    run(config, source, batch=batch, wait=wait, ack=ack, as_json=as_json)


@app.command()
def tail(
    queue: Queue,
    start: Annotated[str, typer.Option("--from", metavar="new|beginning|TIME|OFFSET", help="Where to start.")] = "new",
    limit: Annotated[
        int | None, typer.Option(min=1, help="End after so many messages; else Ctrl-C ends.", show_default=False)
    ] = None,
    partition: Partition = None,
    as_json: JsonLines = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Print messages as they come; no group misses any of them."""
    from skep.cli.tail import Tail, run

    config = Config.load(database_url=database_url, data_dir=data_dir)
    run(config, Tail(queue, partition, start, limit, as_json))


@queue_app.command("list")
def queue_list(as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """List the queues."""
    from skep.cli.queue import list_queues

    list_queues(Config.load(database_url=database_url, data_dir=data_dir), as_json=as_json)


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

    show(Config.load(database_url=database_url, data_dir=data_dir), queue, limit=limit, as_json=as_json)


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

    configure(Config.load(database_url=database_url, data_dir=data_dir), queue, options or [], as_json=as_json)


@queue_app.command("delete")
def queue_delete(
    queue: Queue, yes: Yes = False, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Delete a queue with everything in it but its dead letters."""
    from skep.cli.queue import delete

    delete(Config.load(database_url=database_url, data_dir=data_dir), queue, yes=yes, as_json=as_json)


@group_app.command("list")
def group_list(
    queue: OfQueue = None, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """List the groups and the queues they read."""
    from skep.cli.group import list_groups

    list_groups(Config.load(database_url=database_url, data_dir=data_dir), queue, as_json=as_json)


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

    show(Config.load(database_url=database_url, data_dir=data_dir), group, queue, limit=limit, as_json=as_json)


@group_app.command("seek")
def group_seek(
    group: Group,
    queue: Queue,
    position: Annotated[str, typer.Argument(help="beginning, end, a time or an offset.", show_default=False)],
    partition: Partition = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Move a group to another place of a queue; what it has leased is dropped."""
    from skep.cli.group import seek

    config = Config.load(database_url=database_url, data_dir=data_dir)
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

    config = Config.load(database_url=database_url, data_dir=data_dir)
    delete(config, group, queue, keep_subscription=keep_subscription, yes=yes, as_json=as_json)


@dlq_app.command("list")
def dlq_list(
    queue: OfQueue = None,
    group: OfGroup = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List dead letters, the newest first."""
    from skep.cli.dlq import list_dead_letters

    config = Config.load(database_url=database_url, data_dir=data_dir)
    list_dead_letters(config, queue, group, limit=limit, as_json=as_json)
