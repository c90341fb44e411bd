"""The command line: the only place that prints, exits and handles signals. Bodies are imported when they are called."""

import os
import sys
from typing import Annotated, Literal

import typer

import skep
from skep.cli.commands.delayed import delayed_app
from skep.cli.commands.dlq import dlq_app
from skep.cli.commands.group import group_app
from skep.cli.commands.key import key_app
from skep.cli.commands.maintenance import maintenance_app
from skep.cli.commands.message import message_app
from skep.cli.commands.pipeline import pipeline_app
from skep.cli.commands.queue import queue_app
from skep.cli.commands.schedule import schedule_app
from skep.cli.completion import answer_shells
from skep.cli.examples import add_examples
from skep.cli.options import (
    Auth,
    DatabaseUrl,
    DataDir,
    DelayedInterval,
    DetectionInterval,
    HeldPushInterval,
    Host,
    Json,
    JsonLines,
    LeaseExpiryInterval,
    LogFormat,
    LogLevel,
    Namespace,
    OutboxInterval,
    Partition,
    Port,
    PruningInterval,
    Queue,
    RetentionInterval,
    SamplingInterval,
    ScheduleInterval,
    SomeQueue,
    Task,
    TlsCert,
    TlsKey,
    Workers,
    Yes,
    choose,
    complete_group,
)
from skep.config import Config
from skep.message import DEFAULT_PARTITION, QUEUE_MODE

app = typer.Typer(
    help="A partitioned message queue and pub/sub log inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(queue_app, name="queue")
app.add_typer(message_app, name="message")
app.add_typer(group_app, name="group")
app.add_typer(dlq_app, name="dlq")
app.add_typer(delayed_app, name="delayed")
app.add_typer(schedule_app, name="schedule")
app.add_typer(key_app, name="key")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(maintenance_app, name="maintenance")


def main() -> None:
    """Run the command line; an error is one line and a hint, never a traceback (unless SKEP_DEBUG=1)."""
    try:
        answer_shells()
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
def serve(
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    auth: Auth = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    lease_expiry_interval: LeaseExpiryInterval = None,
    detection_interval: DetectionInterval = None,
    retention_interval: RetentionInterval = None,
    sampling_interval: SamplingInterval = None,
    pruning_interval: PruningInterval = None,
    held_push_interval: HeldPushInterval = None,
    outbox_interval: OutboxInterval = None,
    delayed_interval: DelayedInterval = None,
    schedule_interval: ScheduleInterval = None,
) -> None:
    """Run the server, on an embedded PostgreSQL or on yours. Settings without a flag are set by SKEP_… variables."""
    from skep.cli.serve import run

    run(
        Config.load(
            database_url=database_url,
            data_dir=data_dir,
            host=host,
            port=port,
            workers=workers,
            auth=auth,
            tls_cert=tls_cert,
            tls_key=tls_key,
            log_format=log_format,
            log_level=log_level,
            lease_expiry_interval=lease_expiry_interval,
            detection_interval=detection_interval,
            retention_interval=retention_interval,
            sampling_interval=sampling_interval,
            pruning_interval=pruning_interval,
            held_push_interval=held_push_interval,
            outbox_interval=outbox_interval,
            delayed_interval=delayed_interval,
            schedule_interval=schedule_interval,
        )
    )


@app.command()
def install(
    database_url: DatabaseUrl = None,
    print_sql: Annotated[bool, typer.Option("--print", help="Print the SQL instead of running it.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Re-create functions, roles and grants even if nothing has changed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a line.")] = False,
) -> None:
    """Install or upgrade Skep in a PostgreSQL database."""
    from skep.cli.install import run

    run(Config.load_client(database_url), print_sql=print_sql, again=again, as_json=as_json)


@app.command()
def uninstall(
    database_url: DatabaseUrl = None,
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a line.")] = False,
) -> None:
    """Delete Skep with all its queues and messages from a PostgreSQL database."""
    from skep.cli.install import remove

    remove(Config.load_client(database_url), yes=yes, as_json=as_json)


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
    delay: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Deliver so much later: 30m, 2h, 1d.", show_default=False)
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver at this time.", show_default=False)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Payloads are any text, pushed as strings.")] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push messages to a queue."""
    from skep.cli.push import Template, parse_headers, run
    from skep.cli.times import parse_due_time, parse_length

    length, due_at = None if delay is None else parse_length(delay), parse_due_time(deliver_at)
    template = Template(partition, transaction_id, parse_headers(header or []), text, length, due_at)
    run(Config.load_client(database_url, data_dir), queue, payloads or [], template, as_json=as_json)


@app.command()
def pop(
    queue: SomeQueue = None,
    group: Annotated[
        str,
        typer.Option(
            help="Read for this group; without one, share the queue with others.",
            autocompletion=complete_group,
            show_default=False,
        ),
    ] = QUEUE_MODE,
    batch: Annotated[int, typer.Option(help="How many messages at most.")] = 1,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first one.")] = 0,
    partition: Partition = None,
    namespace: Namespace = None,
    task: Task = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Messages are done once they are printed.")] = True,
    as_json: JsonLines = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Take messages off a queue and print them."""
    from skep.cli.pop import run
    from skep.scope import Scope

    config = Config.load_client(database_url, data_dir)
    scope = Scope(queue, group, partition, namespace, task)
    run(config, scope, batch=batch, wait=wait, ack=ack, as_json=as_json)


@app.command()
def tail(
    queue: Queue,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="new|beginning|TIME|OFFSET",
            help="Where to start.",
            autocompletion=choose("new", "beginning"),
        ),
    ] = "new",
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

    config = Config.load_client(database_url, data_dir)
    run(config, Tail(queue, partition, start, limit, as_json))


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per look and line.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show rates, lags and dead letters of all queues and groups, as they change."""
    from skep.cli.top import run

    run(Config.load_client(database_url, data_dir), once=once, interval=interval, json=as_json)


@app.command()
def doctor(
    thorough: Annotated[bool, typer.Option("--thorough", help="Read every message, too, and check the log.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Check the database for what is known to hurt, and say what to do; exit code 1 if a check fails."""
    from skep.cli.doctor import run

    if not run(Config.load_client(database_url, data_dir), thorough=thorough, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="End after so long; else Ctrl-C ends.", show_default=False)
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Orders in a second.")] = 20,
    clean: Annotated[bool, typer.Option("--clean", help="Remove its queues and groups, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event and line.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Run a shop with groups that are slow, failing, late and paused, so that there is something to look at."""
    from skep.cli.demo import run

    run(Config.load_client(database_url, data_dir), seconds=seconds, rate=rate, clean=clean, as_json=as_json)


@app.command()
def bench(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each measurement takes.")] = 5,
    workers: Annotated[int, typer.Option(min=1, max=100, help="How many call at once.")] = 8,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="How many messages a call has.")] = 100,
    size: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many bytes a message has.")] = 200,
    partitions: Annotated[int, typer.Option(min=1, max=100_000, help="How many partitions they go to.")] = 8,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Measure pushes, pops and the way of a message, on a queue that is deleted at the end."""
    from skep.cli.bench import Wish, run

    config = Config.load_client(database_url, data_dir)
    run(config, Wish(seconds, workers, batch, size, partitions), as_json=as_json)


@app.command()
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Your shell.", show_default=False)
    ],
) -> None:
    """Print a script that lets a shell complete commands, options, and names of queues and groups."""
    from skep.cli.completion import run

    run(shell)


@app.command()
def upkeep(
    once: Annotated[bool, typer.Option("--once", help="Run every job once; exit code 1 if one fails.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what retention would delete.")] = False,
    as_json: JsonLines = False,
    lease_expiry_interval: LeaseExpiryInterval = None,
    detection_interval: DetectionInterval = None,
    retention_interval: RetentionInterval = None,
    sampling_interval: SamplingInterval = None,
    pruning_interval: PruningInterval = None,
    held_push_interval: HeldPushInterval = None,
    outbox_interval: OutboxInterval = None,
    delayed_interval: DelayedInterval = None,
    schedule_interval: ScheduleInterval = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Do what `skep serve` does in the background: retention, dead groups, samples."""
    from skep.cli.upkeep import run

    config = Config.load_upkeep(
        database_url=database_url,
        data_dir=data_dir,
        lease_expiry_interval=lease_expiry_interval,
        detection_interval=detection_interval,
        retention_interval=retention_interval,
        sampling_interval=sampling_interval,
        pruning_interval=pruning_interval,
        held_push_interval=held_push_interval,
        outbox_interval=outbox_interval,
        delayed_interval=delayed_interval,
        schedule_interval=schedule_interval,
    )
    if not run(config, once=once, dry_run=dry_run, as_json=as_json):
        raise typer.Exit(1)


add_examples(app)
