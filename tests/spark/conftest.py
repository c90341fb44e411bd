"""One Spark session for all tests: starting it takes longer than most of them."""

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skep.errors import ConfigError
from skep.pipelines import tasks
from skep.spark import session
from tests.cli.conftest import cli  # noqa: F401  # pipelines of the command line run on this Spark
from tests.server.environments import missing
from tests.spark.killing import Killer
from tests.spark.work import FAST, Work

INTERPRETER = """#!/bin/sh
unset PYTHONPATH PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX='{cache}'
exec '{python}' "$@"
"""


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python for Spark's processes, with a cache of bytecode.

    Every stream starts new processes. Spark's zip has no bytecode, and each would spend a second on compiling it.
    """
    home = tmp_path_factory.mktemp("python")
    path = home / "python"
    path.write_text(INTERPRETER.format(cache=home / "cache", python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def spark(interpreter: Path) -> Generator[SparkSession]:
    """Spark, on the installed Java or that of the wheel. Without Java the tests are skipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(interpreter))
        yield from _spark()


def _spark() -> Generator[SparkSession]:
    try:
        started = session("tests", master="local[2]", config=FAST)
    except ConfigError as error:
        missing(f"{error}; {error.hint}")
        return
    started.sparkContext.setLogLevel("OFF")
    yield started
    started.stop()


@pytest.fixture
def work(spark: SparkSession, database_url: str, tmp_path: Path) -> Generator[Work]:
    """Spark and a new database. Running streams are stopped at the end."""
    with Work(spark, database_url, tmp_path) as started:
        yield started


@pytest.fixture
def work_on(spark: SparkSession, tmp_path: Path) -> Generator[Callable[[str], Work]]:
    """Like `work`, on another database."""
    started: list[Work] = []

    def start(url: str) -> Work:
        started.append(Work(spark, url, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def alone(work: Work, monkeypatch: pytest.MonkeyPatch) -> Work:
    """Like `work`, with the work of tasks done in this process."""
    monkeypatch.setattr(tasks, "run", lambda _, task, items, report: [task(item) for item in items])
    return work


@pytest.fixture
def killer(work: Work) -> Generator[Killer]:
    """Jobs on the database and archive of this test, which are killed."""
    with Killer(work.url, work.home / "archive") as started:
        yield started
