"""One Spark for the run: starting it takes longer than most tests."""

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
    """Python for Spark's processes, of which every stream needs new ones.

    Spark puts its zip on their path, without bytecode, and each would spend a second on compiling it.
    """
    home = tmp_path_factory.mktemp("python")
    path = home / "python"
    path.write_text(INTERPRETER.format(cache=home / "cache", python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="session")
def spark(interpreter: Path) -> Generator[SparkSession]:
    """Spark, on the machine's Java or that of the wheel; without any, the tests are skipped."""
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
    """A database of this test's own, and Spark to work on it; streams that still run are stopped."""
    with Work(spark, database_url, tmp_path) as started:
        yield started


@pytest.fixture
def work_on(spark: SparkSession, tmp_path: Path) -> Generator[Callable[[str], Work]]:
    """The same on another database."""
    started: list[Work] = []

    def start(url: str) -> Work:
        started.append(Work(spark, url, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def alone(work: Work, monkeypatch: pytest.MonkeyPatch) -> Work:
    """What tasks do is done in this process."""
    monkeypatch.setattr(tasks, "run", lambda _, task, items, look: [task(item) for item in items])
    return work


@pytest.fixture
def killer(work: Work) -> Generator[Killer]:
    """Jobs on this test's database and archive, to be killed."""
    with Killer(work.url, work.home / "archive") as started:
        yield started
