"""The engine on every PostgreSQL that Skep supports."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from tests.conftest import FAST
from tests.postgres_binaries import MAJORS, require

HERE = Path(__file__).parent
# One file for each stage of a message; the whole suite runs on the version of the run.
STAGES = ("test_outbox", "test_dedup", "test_retry", "test_poison", "test_seek")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("major", MAJORS)
def test_engine_on(major: int, data_dir: Path, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        if connection.info.server_version // 10000 == major:
            pytest.skip("the version of this run")
    if os.environ.get("SKEP_TEST_ALL") != "1":
        pytest.skip("other versions take two minutes: set SKEP_TEST_ALL=1, as CI does")
    bin_dir = require(major)
    with embedded.start(data_dir, settings=FAST, bin_dir=bin_dir) as server:
        files = [str(HERE / f"{stage}.py") for stage in STAGES]
        environment = {**os.environ, "SKEP_TEST_DATABASE_URL": server.url}
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files],
            check=False,
            env=environment,
            capture_output=True,
            text=True,
            cwd=HERE.parent.parent,
        )
    assert result.returncode == 0, result.stdout[-4000:]
