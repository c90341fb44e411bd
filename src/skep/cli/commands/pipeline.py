"""`skep pipeline`: its commands."""

from pathlib import Path
from typing import Annotated

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Namespace, Queue, Since, Task, Until
from skep.config import Config

pipeline_app = typer.Typer(help="Jobs on Spark: analytics, archive, compact, import, replay.", no_args_is_help=True)

Queues = Annotated[list[str] | None, typer.Argument(metavar="[QUEUE]...", help="The queues.", show_default=False)]
Pattern = Annotated[
    str | None, typer.Option(help="Instead of queues: all whose name matches this expression.", show_default=False)
]
Location = Annotated[
    str, typer.Option("--archive", metavar="PATH|URI", help="Where the archive is.", show_default=False)
]
Master = Annotated[str, typer.Option(help="The Spark to run on; local[*] is this machine.")]


@pipeline_app.command("analytics")
def pipeline_analytics(
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    reports: Annotated[
        Path, typer.Option(envvar="SKEP_REPORTS", help="Where reports are kept.", show_envvar=True)
    ] = Path("reports"),
    location: Annotated[
        str | None,
        typer.Option(
            "--archive", metavar="PATH|URI", help="Where the archive is now, if it was moved.", show_default=False
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Make a report of queues, or of all: throughput, time in queue, lag, fan-out, failures, skew."""
    from skep.cli.pipeline import analytics, select, time_range_of

    scope = select(queues, pattern, namespace, task, or_all=True)
    config, time_range = Config.load_client(database_url, data_dir), time_range_of(since, until)
    analytics(config, scope, reports, location=location, time_range=time_range, master=master, as_json=as_json)


@pipeline_app.command("archive")
def pipeline_archive(
    location: Location,
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    file_messages: Annotated[int, typer.Option(min=1, help="At most so many messages in a file.")] = 1_000_000,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Store the messages of queues as Parquet, each once; run it as often as you like."""
    from skep.cli.pipeline import archive, select

    config = Config.load_client(database_url, data_dir)
    scope = select(queues, pattern, namespace, task)
    archive(config, location, scope, file_messages=file_messages, master=master, as_json=as_json)


@pipeline_app.command("compact")
def pipeline_compact(
    location: Location,
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    file_messages: Annotated[
        int, typer.Option(min=2, help="At most so many messages in a file; files of half as many stay as they are.")
    ] = 1_000_000,
    grace: Annotated[
        str, typer.Option(help="How long the old files stay, for those who read them: 90, 30m, 2h, 1d.")
    ] = "1d",
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Merge small files of an archive, of all queues unless some are named; reads are right at any moment."""
    from skep.cli.pipeline import compact, select

    config = Config.load_client(database_url, data_dir)
    scope = select(queues, pattern, namespace, task, or_all=True)
    compact(config, location, scope, file_messages=file_messages, grace=grace, master=master, as_json=as_json)


@pipeline_app.command("import")
def pipeline_import(
    queue: Queue,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, directories or patterns.", show_default=False)
    ],
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="parquet|json|csv", help="Without it, by the name of the first file."),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(help="The field that says which partition.", show_default=False)
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option(help="The field with transaction ids; without it they are made of the content.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option(help="The field that orders a partition; without it, the order of the files.")
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="CSV: find out types; else everything is text.")] = False,
    name: Annotated[
        str | None, typer.Option(help="Which import this is; without it, its paths say that.", show_default=False)
    ] = None,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push every row of files to a queue, each once, however often it is run. JSON is one value per line."""
    from skep.cli.pipeline import import_files, source_of

    source = source_of(paths, format_, partition_by, transaction_id, order_by, infer, name)
    import_files(Config.load_client(database_url, data_dir), queue, source, master=master, as_json=as_json)


@pipeline_app.command("replay")
def pipeline_replay(
    queue: Queue,
    to_queue: Annotated[str, typer.Option("--to", help="The queue to push the copies to.", show_default=False)],
    location: Annotated[
        str | None, typer.Option("--archive", metavar="PATH|URI", help="Where the archive is.", show_default=False)
    ] = None,
    since: Since = None,
    until: Until = None,
    group: Annotated[
        str | None,
        typer.Option(help="A group that joins: it goes on in QUEUE where the replay ended.", show_default=False),
    ] = None,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push what a queue has, and had by its archive, to another queue, in order and each once."""
    from skep.cli.pipeline import Replay, replay

    config = Config.load_client(database_url, data_dir)
    replay(config, Replay(queue, to_queue, location, since, until, group), master=master, as_json=as_json)
