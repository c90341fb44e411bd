"""Run the examples of docs/outbox.md; the page shows each file in full."""

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
    """Run an example and return its output."""
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
def test_an_example_publishes_committed_messages(database_url: str, example: str, printed: str) -> None:
    """L2, L3: only the message of the committed row is published."""
    lines = [line.strip() for line in run(example, database_url).splitlines()]
    assert [line for line in lines if '{"id"' in line or "got" in line] == [printed]


def test_the_example_counts_exactly_once(database_url: str) -> None:
    lines = run("exactly_once.py", database_url).splitlines()
    assert lines == [f"counted {{'id': {n}}} ({n + 1},)" for n in range(3)]
    with Skep(database_url) as mq:
        assert [partition.lag for partition in mq.queue("orders").lag("counting")] == [0]


def test_a_trigger_publishes_every_committed_change(database_url: str) -> None:
    """L2, L3: each customer has a partition, in order; changes that were rolled back are not published."""
    run("outbox_trigger.sql", database_url)
    with Skep(database_url) as mq, psycopg.connect(database_url) as connection:
        batch = mq.queue("orders").pop(batch=10, partitions=2)
        events = [(message.partition, (message.headers or {})["event"], message.payload["status"]) for message in batch]
        assert [event for event in events if event[0] == "ann"] == [
            ("ann", "insert", "new"),
            ("ann", "update", "paid"),
            ("ann", "update", "sent"),
        ]
        assert [event for event in events if event[0] == "bob"] == [("bob", "insert", "new")]
        assert connection.execute("SELECT status FROM shop.orders ORDER BY id").fetchall() == [("sent",), ("new",)]
