"""Fixtures: a client, and processes that run clients."""

from collections.abc import Generator

import pytest

from skep import Skep
from tests.faults.processes import Start, processes


@pytest.fixture
def start() -> Generator[Start]:
    """Start processes that run a job of `tests.faults.worker`; all are killed after the test."""
    with processes() as start_one:
        yield start_one


@pytest.fixture
def mq(database_url: str) -> Generator[Skep]:
    with Skep(database_url, poll_interval=0.1) as client:
        yield client
