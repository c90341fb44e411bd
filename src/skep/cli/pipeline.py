"""`skep pipeline`: jobs on Spark, with a bar while they run and a line at the end."""

import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import psycopg
from pyspark.sql import SparkSession
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skep import embedded
from skep.cli.connect import opening
from skep.cli.report import errors
from skep.cli.show import as_dict, counted, one_line, say, show_json, span
from skep.cli.times import parse_length, parse_time
from skep.config import Config
from skep.engine.install import install, verify
from skep.errors import InvalidArgument, explained
from skep.pipelines import analysing, archiving, compacting, importing, manifest, replaying
from skep.pipelines.importing import Format, ImportSource
from skep.pipelines.replaying import TimeRange
from skep.spark import session
from skep.spark.database import database
from skep.spark.options import QueueScope


class Show(Protocol):
    """Show how much of how much is done, and of what."""

    def __call__(self, done: int, total: int, name: str = ...) -> None: ...


def select(
    queues: Sequence[str] | None, pattern: str | None, namespace: str | None, task: str | None, *, or_all: bool = False
) -> QueueScope:
    ways = [bool(queues), pattern is not None, namespace is not None or task is not None]
    if sum(ways) != 1 and not (or_all and sum(ways) == 0):
        raise InvalidArgument("say which queues: by name, by --pattern, or by --namespace and --task")
    return QueueScope(tuple(queues) if queues else None, pattern, namespace, task)


@contextmanager
def running(config: Config, name: str, master: str) -> Generator[tuple[SparkSession, str]]:
    """Give a Spark, and the URL of a database that is there as long as the job runs."""
    with _database(config) as url:
        with errors.status("Starting Spark") if errors.is_terminal else nullcontext(), _quiet():
            spark = session(f"skep {name}", master=master)
            spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark, url
        finally:
            database(url).close()


@contextmanager
def _quiet() -> Generator[None]:
    """Java talks a lot when it starts, and keeps the standard error it was given then. SKEP_DEBUG lets it talk."""
    if os.environ.get("SKEP_DEBUG"):
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _database(config: Config) -> Generator[str]:
    if config.database_url is not None:
        with opening(config), explained(), psycopg.connect(config.database_url) as connection:
            verify(connection)
        yield config.database_url
        return
    with ExitStack() as stack:
        with opening(config):
            server = stack.enter_context(embedded.start(config.data_dir))
            install(server.url, data_dir=server.data_dir)
        yield server.url


@contextmanager
def bar(what: str) -> Generator[Show]:
    """Give what shows how much of how much is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, name=what: progress.update(task, completed=done, total=total, description=name)


def source_of(
    paths: Sequence[str],
    format_: str | None,
    partition: str | None,
    transaction_id: str | None,
    order: str | None,
    infer: bool,
    name: str | None,
) -> ImportSource:
    ending = paths[0].removesuffix(".gz").rpartition(".")[2].lower()
    known = {"parquet": "parquet", "json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv"}
    found = known.get(format_ or ending)
    if found is None:
        raise InvalidArgument(
            f'"{one_line(format_ or paths[0])}" is of no known format', hint="say --format parquet, json or csv"
        )
    return ImportSource(tuple(paths), cast("Format", found), partition, transaction_id, order, infer, name)


def import_files(config: Config, queue: str, source: ImportSource, *, master: str, as_json: bool) -> None:
    with running(config, "import", master) as (spark, url), bar("importing") as show:
        began = time.monotonic()
        done = importing.import_files(spark, url, queue, source, on_progress=show if errors.is_terminal else None)
        seconds = time.monotonic() - began
    if as_json:
        show_json({**as_dict(done), "seconds": round(seconds, 3)})
        return
    there = f", {done.duplicates:,} were there" if done.duplicates else ""
    say(f"{counted(done.messages, 'message')} imported to {one_line(queue)}{there}, {seconds:,.1f} s")


class Replay(NamedTuple):
    """What to replay, as the command says it."""

    queue: str
    to_queue: str
    location: str | None
    since: str | None
    until: str | None
    group: str | None


def replay(config: Config, asked: Replay, *, master: str, as_json: bool) -> None:
    since, until = parse_time(asked.since), parse_time(asked.until)
    times = TimeRange(since, until) if since or until else None
    with running(config, "replay", master) as (spark, url), bar("replaying") as show:
        began = time.monotonic()
        done = replaying.replay(
            spark,
            url,
            asked.queue,
            asked.to_queue,
            archive=asked.location,
            time_range=times,
            group=asked.group,
            on_progress=show,
        )
        seconds = time.monotonic() - began
    if as_json:
        show_json({**as_dict(done), "seconds": round(seconds, 3)})
        return
    there = f", {done.duplicates:,} were there" if done.duplicates else ""
    names = f"from {one_line(done.queue)} to {one_line(done.to_queue)}"
    say(f"{counted(done.messages, 'message')} replayed {names}{there}, {seconds:,.1f} s")
    if asked.group is not None:
        say(f"group {one_line(asked.group)} goes on in {one_line(done.queue)} where the replay ended")


def time_range_of(since: str | None, until: str | None) -> TimeRange:
    return TimeRange(parse_time(since), parse_time(until))


def analytics(
    config: Config,
    scope: QueueScope,
    reports: Path,
    *,
    location: str | None,
    time_range: TimeRange,
    master: str,
    as_json: bool,
) -> None:
    with running(config, "analytics", master) as (spark, url), bar("analysing") as show:
        began = time.monotonic()
        done = analysing.analytics(
            spark, url, reports, scope, archive=location, time_range=time_range,
            on_progress=lambda number, total, name: show(number, total, f"analysing: {name}"),
        )  # fmt: skip
        seconds = time.monotonic() - began
    if as_json:
        show_json({**as_dict(done), "seconds": round(seconds, 3)})
        return
    what = f"{counted(done.messages, 'message')} of {counted(len(done.queues), 'queue')}"
    say(f"{what} analysed, {seconds:,.1f} s; tables in {one_line(done.tables)}")
    for finding in done.findings:
        say(f"- {one_line(finding)}")
    say(f"report: {one_line(done.report)}" if done.findings else f"healthy; report: {one_line(done.report)}")


def archive(
    config: Config, location: str, scope: QueueScope, *, file_messages: int, master: str, as_json: bool
) -> None:
    with running(config, "archive", master) as (spark, url), bar("archiving") as show:
        began = time.monotonic()
        done = archiving.archive(
            spark, url, location, scope, file_messages=file_messages,
            on_progress=lambda progress: show(progress.stored_messages, progress.messages),
        )  # fmt: skip
        seconds = time.monotonic() - began
        waiting = {each.queue: each.waiting for each in manifest.status(url, done.queues)}
    if as_json:
        show_json({**as_dict(done), "seconds": round(seconds, 3)})
        return
    files = f" in {counted(done.files, 'file')}, {done.bytes / 1e6:,.1f} MB" if done.files else ", everything was there"
    say(f"{counted(done.messages, 'message')} archived at {one_line(done.location)}{files}, {seconds:,.1f} s")
    for queue in (queue for queue, waits in waiting.items() if not waits):
        errors.print(
            f"retention of {one_line(queue)} does not wait for the archive; "
            f"to make it wait: skep queue configure {one_line(queue)} retain_until_archived=true",
            markup=False,
        )


def compact(
    config: Config, location: str, scope: QueueScope, *, file_messages: int, grace: str, master: str, as_json: bool
) -> None:
    length = parse_length(grace)
    with running(config, "compact", master) as (spark, url), bar("compacting") as show:
        began = time.monotonic()
        done = compacting.compact(
            spark, url, location, scope, file_messages=file_messages, grace=length, on_progress=show
        )
        seconds = time.monotonic() - began
    if as_json:
        show_json({**as_dict(done), "seconds": round(seconds, 3)})
        return
    sizes = f"{done.bytes_before / 1e6:,.1f} MB became {done.bytes / 1e6:,.1f} MB"
    made = f"{counted(done.replaced, 'file')} of {one_line(done.location)} became {done.files:,}"
    made += f", {counted(done.messages, 'message')}, {sizes}" if done.files else ""
    say(f"{made if done.files else f'nothing to compact at {one_line(done.location)}'}, {seconds:,.1f} s")
    if done.files:
        say(f"the old files are kept for {span(length.total_seconds())}, the next job after that deletes them")
    if done.deleted:
        say(f"{counted(done.deleted, 'file')} deleted that had been replaced before")
