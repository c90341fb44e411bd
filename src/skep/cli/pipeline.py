"""`skep pipeline`: jobs on Spark, with a progress bar and a summary at the end."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skep.cli.options import DatabaseUrl, DataDir, Json, Namespace, Queue, Since, Task, Until
from skep.cli.show import as_dict, counted, duration, error_console, one_line, say, show_json
from skep.cli.times import parse_duration, parse_time
from skep.config import Config
from skep.errors import InvalidArgument

if TYPE_CHECKING:
    from skep.pipelines.compacting import Compacted
    from skep.pipelines.importing import Format
    from skep.spark.options import QueueScope

FORMATS: dict[str, "Format"] = {
    "parquet": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
}

pipeline_app = typer.Typer(help="Run Spark jobs: analytics, archive, compact, import, replay.", no_args_is_help=True)

Queues = Annotated[
    list[str] | None, typer.Argument(metavar="[QUEUE]...", help="The names of the queues.", show_default=False)
]
Pattern = Annotated[
    str | None, typer.Option(help="All queues whose name matches this regular expression.", show_default=False)
]
Location = Annotated[
    str, typer.Option("--archive", metavar="PATH|URI", help="Location of the archive.", show_default=False)
]
OptionalLocation = Annotated[
    str | None, typer.Option("--archive", metavar="PATH|URI", help="Location of the archive.", show_default=False)
]
FileMessages = Annotated[int, typer.Option(min=1, help="Maximum number of messages in a file.")]
Master = Annotated[str, typer.Option(help="Spark master; local[*] is this machine.")]


def _select(
    queues: Sequence[str] | None, pattern: str | None, namespace: str | None, task: str | None, *, or_all: bool = False
) -> "QueueScope":
    from skep.spark.options import QueueScope

    given = [bool(queues), pattern is not None, namespace is not None or task is not None]
    if sum(given) != 1 and not (or_all and sum(given) == 0):
        hint = "pass their names, --pattern, or --namespace and --task"
        raise InvalidArgument("the queues must be selected in exactly one way", hint=hint)
    return QueueScope(tuple(queues) if queues else None, pattern, namespace, task)


def _show_result(done: Any, seconds: float) -> None:  # noqa: ANN401
    show_json({**as_dict(done), "seconds": round(seconds, 3)})


@pipeline_app.command()
def analytics(
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    reports: Annotated[
        Path, typer.Option(envvar="SKEP_REPORTS", help="Folder of the reports.", show_envvar=True)
    ] = Path("reports"),
    location: Annotated[
        str | None,
        typer.Option(
            "--archive", metavar="PATH|URI", help="New location of the archive if it was moved.", show_default=False
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a report on queues: throughput, time in queue, lag, fan-out, failures, skew. Default: all queues."""
    from skep.cli.spark_job import progress_bar, spark_job
    from skep.pipelines import analysing
    from skep.pipelines.replaying import TimeRange

    selection = _select(queues, pattern, namespace, task, or_all=True)
    config, span = Config.load_client(database_url, data_dir), TimeRange(parse_time(since), parse_time(until))
    with spark_job(config, "analytics", master) as (spark, url), progress_bar("analysing") as show:
        start = time.monotonic()
        done = analysing.analytics(
            spark, url, reports, selection, archive=location, time_range=span,
            on_progress=lambda number, total, name: show(number, total, f"analysing: {name}"),
        )  # fmt: skip
        seconds = time.monotonic() - start
    if as_json:
        _show_result(done, seconds)
        return
    what = f"{counted(done.messages, 'message')} of {counted(len(done.queues), 'queue')}"
    say(f"{what} analysed, {seconds:,.1f} s; tables in {one_line(done.tables)}")
    for finding in done.findings:
        say(f"- {one_line(finding)}")
    say(f"report: {one_line(done.report)}" if done.findings else f"healthy; report: {one_line(done.report)}")


@pipeline_app.command()
def archive(
    location: Location,
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    file_messages: FileMessages = 1_000_000,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Archive the messages of queues as Parquet, each message once. The job can be repeated."""
    from skep.cli.spark_job import progress_bar, spark_job
    from skep.pipelines import archiving, manifest

    selection = _select(queues, pattern, namespace, task)
    config = Config.load_client(database_url, data_dir)
    with spark_job(config, "archive", master) as (spark, url), progress_bar("archiving") as show:
        start = time.monotonic()
        done = archiving.archive(
            spark, url, location, selection, file_messages=file_messages,
            on_progress=lambda progress: show(progress.stored_messages, progress.messages),
        )  # fmt: skip
        seconds = time.monotonic() - start
        waiting = {each.queue: each.waiting for each in manifest.status(url, done.queues)}
    if as_json:
        _show_result(done, seconds)
        return
    files = f" in {counted(done.files, 'file')}, {done.bytes / 1e6:,.1f} MB" if done.files else ", nothing new"
    say(f"{counted(done.messages, 'message')} archived at {one_line(done.location)}{files}, {seconds:,.1f} s")
    for queue in (queue for queue, waits in waiting.items() if not waits):
        error_console().print(
            f"retention of {one_line(queue)} does not wait for the archive; "
            f"to make it wait: skep queue configure {one_line(queue)} retain_until_archived=true",
            markup=False,
        )


@pipeline_app.command()
def compact(
    location: Location,
    queues: Queues = None,
    pattern: Pattern = None,
    namespace: Namespace = None,
    task: Task = None,
    file_messages: Annotated[
        int,
        typer.Option(
            min=2, help="Maximum number of messages in a file. Files with half of this or more are not merged."
        ),
    ] = 1_000_000,
    grace: Annotated[str, typer.Option(help="Time to keep the old files for their readers: 90, 30m, 2h, 1d.")] = "1d",
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Merge small files of an archive while it can be read. Default: all queues."""
    from skep.cli.spark_job import progress_bar, spark_job
    from skep.pipelines import compacting

    selection = _select(queues, pattern, namespace, task, or_all=True)
    config, length = Config.load_client(database_url, data_dir), parse_duration(grace)
    with spark_job(config, "compact", master) as (spark, url), progress_bar("compacting") as show:
        start = time.monotonic()
        done = compacting.compact(
            spark, url, location, selection, file_messages=file_messages, grace=length, on_progress=show
        )
        seconds = time.monotonic() - start
    if as_json:
        _show_result(done, seconds)
    else:
        _show_compacted(done, seconds, length.total_seconds())


def _show_compacted(done: "Compacted", seconds: float, grace: float) -> None:
    if done.files:
        sizes = f"{done.bytes_before / 1e6:,.1f} MB became {done.bytes / 1e6:,.1f} MB"
        files = f"{counted(done.replaced, 'file')} of {one_line(done.location)} became {done.files:,}"
        say(f"{files}, {counted(done.messages, 'message')}, {sizes}, {seconds:,.1f} s")
        say(f"the old files are kept for {duration(grace)}; the next job after that deletes them")
    else:
        say(f"nothing to compact at {one_line(done.location)}, {seconds:,.1f} s")
    if done.deleted:
        say(f"{counted(done.deleted, 'file')} deleted that an earlier job had replaced")


@pipeline_app.command("import")
def import_files(
    queue: Queue,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, folders or glob patterns.", show_default=False)
    ],
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="parquet|json|csv", help="Default: by the name of the first file."),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(help="Field with the name of the partition.", show_default=False)
    ] = None,
    transaction_id: Annotated[
        str | None, typer.Option(help="Field with the dedup key. Default: a hash of the row.")
    ] = None,
    order_by: Annotated[
        str | None, typer.Option(help="Field that orders a partition. Default: the order of the files.")
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="Infer the types of CSV columns. Default: all text.")] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the import. Default: its paths.", show_default=False)
    ] = None,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push every row of files to a queue, each row once. The job can be repeated. JSON is one value per line."""
    from skep.cli.spark_job import progress_bar, spark_job
    from skep.pipelines import importing

    fields = (partition_by, transaction_id, order_by)
    source = importing.ImportSource(tuple(paths), _format(format_, paths[0]), *fields, infer, name)
    config, watched = Config.load_client(database_url, data_dir), error_console().is_terminal
    with spark_job(config, "import", master) as (spark, url), progress_bar("importing") as show:
        start = time.monotonic()
        done = importing.import_files(spark, url, queue, source, on_progress=show if watched else None)
        seconds = time.monotonic() - start
    if as_json:
        _show_result(done, seconds)
    else:
        names = f"to {one_line(queue)}{_duplicates(done.duplicates)}"
        say(f"{counted(done.messages, 'message')} imported {names}, {seconds:,.1f} s")


def _format(given: str | None, path: str) -> "Format":
    suffix = path.removesuffix(".gz").rpartition(".")[2].lower()
    found = FORMATS.get(given or suffix)
    if found is None:
        raise InvalidArgument(
            f'unknown format of "{one_line(given or path)}"', hint="pass --format parquet, json or csv"
        )
    return found


def _duplicates(number: int) -> str:
    return f", {counted(number, 'duplicate')} skipped" if number else ""


@pipeline_app.command()
def replay(
    queue: Queue,
    to_queue: Annotated[str, typer.Option("--to", help="The queue to push the copies to.", show_default=False)],
    location: OptionalLocation = None,
    since: Since = None,
    until: Until = None,
    group: Annotated[
        str | None,
        typer.Option(help="A new group, which continues in QUEUE where the replay ends.", show_default=False),
    ] = None,
    master: Master = "local[*]",
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push the stored and archived messages of a queue to another queue, in order and each message once."""
    from skep.cli.spark_job import progress_bar, spark_job
    from skep.pipelines import replaying

    first, last = parse_time(since), parse_time(until)
    span = replaying.TimeRange(first, last) if first or last else None
    config = Config.load_client(database_url, data_dir)
    with spark_job(config, "replay", master) as (spark, url), progress_bar("replaying") as show:
        start = time.monotonic()
        done = replaying.replay(
            spark, url, queue, to_queue, archive=location, time_range=span, group=group, on_progress=show
        )
        seconds = time.monotonic() - start
    if as_json:
        _show_result(done, seconds)
        return
    names = f"from {one_line(done.queue)} to {one_line(done.to_queue)}{_duplicates(done.duplicates)}"
    say(f"{counted(done.messages, 'message')} replayed {names}, {seconds:,.1f} s")
    if group is not None:
        say(f"group {one_line(group)} continues in {one_line(done.queue)} where the replay ended")
