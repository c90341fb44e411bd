"""Servers that one test has to itself, for everything that belongs to a cluster: roles, settings, replication slots."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pytest

from skep import embedded
from tests.conftest import FAST, directory
from tests.postgres_binaries import MAJORS, require


@contextmanager
def server(major: int, settings: Mapping[str, str] | None = None) -> Generator[str]:
    """Yield the URL of a new server of one version, as its superuser; skip the versions that take too long."""
    if major != max(MAJORS) and os.environ.get("SKEP_TEST_ALL") != "1":
        pytest.skip("other versions take a minute: set SKEP_TEST_ALL=1, as CI does")
    bin_dir = require(major)
    every = {**FAST, **(settings or {})}
    with directory() as data_dir, embedded.start(data_dir, settings=every, bin_dir=bin_dir) as started:
        yield started.url
