"""`skep pipeline`: from files to a queue, to the archive, and to another queue."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cli.conftest import Cli

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True, scope="module")
def spark_ends():
    yield
    if (started := SparkSession.getActiveSession()) is not None:
        started.stop()


def test_the_way_of_a_message(cli: Cli, tmp_path: Path):
    source, archive = tmp_path / "orders.jsonl", str(tmp_path / "archive")
    source.write_text('{"to": "a", "n": 1}\n{"to": "b", "n": 2}\n')
    master = ("--master", "local[2]")
    done = cli("pipeline", "import", "orders", str(source), "--partition-by", "to", *master)
    assert (done.code, done.stdout.split(",")[0]) == (0, "2 messages imported to orders"), done.stderr
    done = cli("pipeline", "archive", "orders", "--archive", archive, *master)
    assert done.stdout.startswith(f"2 messages archived at {archive} in 1 file")
    assert "retain_until_archived=true" in done.stderr
    done = cli("pipeline", "archive", "orders", "--archive", archive, *master)
    assert done.stdout.startswith(f"0 messages archived at {archive}, everything was there")
    cli("push", "orders", '{"n": 3}')
    cli("pipeline", "archive", "orders", "--archive", archive, *master)
    done = cli("pipeline", "compact", "--archive", archive, "--grace", "2h", *master)
    assert done.lines[0].startswith(f"2 files of {archive} became 1, 3 messages, 0.0 MB became 0.0 MB")
    assert done.lines[1] == "the old files are kept for 2 h, the next job after that deletes them"
    done = cli("pipeline", "compact", "--archive", archive, *master)
    assert done.stdout.startswith(f"nothing to compact at {archive}")
    done = cli("pipeline", "replay", "orders", "--to", "copy", "--archive", archive, "--group", "late", *master)
    assert done.lines[0].startswith("3 messages replayed from orders to copy")
    assert done.lines[1] == "group late goes on in orders where the replay ended"
    done = cli("pipeline", "replay", "orders", "--to", "copy", "--archive", archive, "--json", *master)
    assert (done.json["messages"], done.json["duplicates"]) == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "--archive", "x"), "say which queues"),
        (("compact", "--archive", "x", "--grace", "long"), "not a length of time"),
        (("import", "q", "data.xml"), "of no known format"),
        (("replay", "q", "--to", "copy", "--since", "yesterday"), "neither a time nor an age"),
    ],
)
def test_what_cannot_be_done(cli: Cli, arguments: tuple[str, ...], said: str):
    done = cli("pipeline", *arguments)
    assert done.code == 1
    assert said in done.stderr
