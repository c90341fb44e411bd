"""Servers that one test has to itself, for everything that belongs to a cluster: roles, settings, replication slots."""

import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from skep import embedded
from tests.conftest import FAST
from tests.postgres_binaries import MAJORS, require


@contextmanager
def server(major: int, settings: Mapping[str, str] | None = None) -> Generator[str]:
    """Yield the URL of a new server of one version, as its superuser; skip the versions that take too long."""
    if major != max(MAJORS) and os.environ.get("SKEP_TEST_ALL") != "1":
        pytest.skip("other versions take a minute: set SKEP_TEST_ALL=1, as CI does")
    bin_dir = require(major)
    data_dir = Path(tempfile.mkdtemp(prefix="skep-test-"))
    try:
        with embedded.start(data_dir, settings={**FAST, **(settings or {})}, bin_dir=bin_dir) as started:
            yield started.url
    finally:
        shutil.rmtree(data_dir)
