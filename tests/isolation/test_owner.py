"""The same interleavings as a database owner who is not a superuser, on every PostgreSQL that Skep supports."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.engine.servers import server
from tests.postgres_binaries import MAJORS

HERE = Path(__file__).parent
# Every pair, every hole, and a short random run; the other files run on the version of the run, as its superuser.
FILES = ("test_pairs", "test_known_mistakes", "test_random_load")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("major", MAJORS)
def test_as_owner_on(major: int) -> None:
    """The newest version in every run, but the pairs only with SKEP_TEST_ALL=1, as CI does."""
    with server(major) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE ROLE plain LOGIN CREATEDB CREATEROLE NOSUPERUSER PASSWORD 'plain'")
        files = FILES if os.environ.get("SKEP_TEST_ALL") == "1" else FILES[1:]
        environment = {
            **os.environ,
            "SKEP_TEST_DATABASE_URL": make_conninfo(url, user="plain", password="plain"),
            "SKEP_TEST_LOAD_SECONDS": "5",
        }
        paths = [str(HERE / f"{file}.py") for file in files]
        result = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths],
            check=False, env=environment, capture_output=True, text=True, cwd=HERE.parent.parent,
        )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:]
