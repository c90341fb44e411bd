"""The stage on which stories are played: a database of the test's own."""

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from tests.isolation.steps import Stage


@pytest.fixture
def stage(database_url: str) -> Generator[Stage]:
    with ExitStack() as stack:
        yield Stage(database_url, stack)
