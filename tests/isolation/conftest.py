"""Fixtures: the sessions of a test, in a database of its own."""

from collections.abc import Generator
from contextlib import ExitStack

import pytest

from tests.isolation.steps import Stage


@pytest.fixture
def stage(database_url: str) -> Generator[Stage]:
    with ExitStack() as stack:
        yield Stage(database_url, stack)
