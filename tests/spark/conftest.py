"""One Spark for the run: starting it takes longer than most tests."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skep.errors import ConfigError
from skep.pipelines import tasks
from skep.spark import session
from tests.server.environments import missing
from tests.spark.killing import Killer
from tests.spark.work import FAST, Work


@pytest.fixture(scope="session")
def spark() -> Generator[SparkSession]:
    """Spark, on the machine's Java or that of the wheel; without any, the tests are skipped."""
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
