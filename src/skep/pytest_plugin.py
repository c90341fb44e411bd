"""The fixtures `skep` and `skep_url`: an empty database with Skep in it for every test.

pytest loads this module in every run, so nothing is imported or started before a test uses a fixture.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from skep import Skep
    from skep.testing import TemporaryDatabase

TOKEN = pytest.StashKey[str]()  # the same in all workers of pytest-xdist, so that they share a server


def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, str] = getattr(config, "workerinput", {})
    config.stash[TOKEN] = given.get("skep_token") or os.urandom(8).hex()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401  # a worker of pytest-xdist, which is optional
    node.workerinput["skep_token"] = node.config.stash[TOKEN]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the data of the server after all workers have ended."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(_data_dir(config), ignore_errors=True)


def _data_dir(config: pytest.Config) -> Path:
    return Path(tempfile.gettempdir()) / f"skep-pytest-{config.stash[TOKEN]}"


@pytest.fixture(scope="session")
def _skep_database(pytestconfig: pytest.Config) -> Generator["TemporaryDatabase"]:
    from skep.testing import TemporaryDatabase, server  # noqa: PLC0415

    with server(_data_dir(pytestconfig)) as server_url, TemporaryDatabase(server_url) as database:
        yield database


@pytest.fixture
def skep_url(_skep_database: "TemporaryDatabase") -> Generator[str]:
    """The URL of a PostgreSQL database with Skep in it. It is emptied after the test."""
    yield _skep_database.url
    _skep_database.empty()


@pytest.fixture
def skep(skep_url: str) -> Generator["Skep"]:
    """A `Skep` client on the database of `skep_url`."""
    from skep import Skep  # noqa: PLC0415

    mq = Skep(skep_url)
    yield mq
    mq.close()
