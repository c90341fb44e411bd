"""What docs/outbox.md shows is what works: each example is a file, shown whole and run here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from skep import Skep
from skep.embedded import binaries

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(example: str, database_url: str) -> str:
    """Run it as a reader would, and return what it prints."""
    parts = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(database_url).items()}
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**{"password": "", "port": "5432"} | parts)
    psql = shutil.which("psql") or str(binaries.find(None, None).bin_dir / "psql")
    command = [psql, "--no-psqlrc", "--tuples-only", "--set", "ON_ERROR_STOP=1", "--dbname", url, "--file"]
    if example.endswith(".py"):
        command = [sys.executable, "-W", "error"]
    environment = os.environ | {"SKEP_DATABASE_URL": url}
    done = subprocess.run(
        [*command, str(EXAMPLES / example)], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("example", "printed"),
    [
        ("outbox_psycopg.py", "got {'id': 7}"),
        ("outbox_sqlalchemy.py", "got {'id': 1}"),
        ("outbox_django.py", "got {'id': 1}"),
        ("outbox.sql", '{"id": 7}'),
    ],
)
def test_it_publishes_what_commits(database_url: str, example: str, printed: str) -> None:
    """L2, L3: the message of the row that was committed, and of no other."""
    said = [line.strip() for line in run(example, database_url).splitlines()]
    assert [line for line in said if '{"id"' in line or "got" in line] == [printed]


def test_it_counts_exactly_once(database_url: str) -> None:
    said = run("exactly_once.py", database_url).splitlines()
    assert said == [f"counted {{'id': {n}}} ({n + 1},)" for n in range(3)]
    with Skep(database_url) as mq:
        assert [lane.lag for lane in mq.queue("orders").lag("counting")] == [0]


def test_a_trigger_tells_of_every_change_that_commits(database_url: str) -> None:
    """L2, L3: the customers' own lanes, each in order; what was rolled back is not there."""
    run("outbox_trigger.sql", database_url)
    with Skep(database_url) as mq, psycopg.connect(database_url) as connection:
        batch = mq.queue("orders").pop(batch=10, partitions=2)
        heard = [(message.partition, (message.headers or {})["event"], message.payload["status"]) for message in batch]
        assert [told for told in heard if told[0] == "ann"] == [
            ("ann", "insert", "new"),
            ("ann", "update", "paid"),
            ("ann", "update", "sent"),
        ]
        assert [told for told in heard if told[0] == "bob"] == [("bob", "insert", "new")]
        assert connection.execute("SELECT status FROM shop.orders ORDER BY id").fetchall() == [("sent",), ("new",)]
