"""Running a pipeline: a Spark session, its database, and a progress bar. Loads PySpark."""

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Protocol

import psycopg
from pyspark.sql import SparkSession
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skep import embedded
from skep.cli.connect import opening
from skep.cli.show import error_console
from skep.config import Config
from skep.engine.install import install, verify
from skep.errors import explained
from skep.spark import session
from skep.spark.database import database


class ShowProgress(Protocol):
    """Shows how much of the total is done, and the name of the current step."""

    def __call__(self, done: int, total: int, name: str = ...) -> None: ...


@contextmanager
def spark_job(config: Config, name: str, master: str) -> Generator[tuple[SparkSession, str]]:
    """Yield a Spark session, and the URL of a database that runs until the job ends."""
    with _database(config) as url:
        errors = error_console()
        with errors.status("Starting Spark") if errors.is_terminal else nullcontext(), _quiet():
            spark = session(f"skep {name}", master=master)
            spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark, url
        finally:
            database(url).close()


@contextmanager
def _quiet() -> Generator[None]:
    """Discard the log of Java, which inherits standard error when it starts. SKEP_DEBUG shows the log."""
    if os.environ.get("SKEP_DEBUG"):
        yield
        return
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
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
def progress_bar(what: str) -> Generator[ShowProgress]:
    """Yield a function that updates a progress bar."""
    console = error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, name=what: progress.update(task, completed=done, total=total, description=name)
