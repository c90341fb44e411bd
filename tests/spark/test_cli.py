"""`skep pipeline`: from files to a queue, to the archive, and to another queue."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from skep.cli import pipeline, spark_job
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]


def test_every_job(cli: Cli, tmp_path: Path):
    source, archive = tmp_path / "orders.jsonl", str(tmp_path / "archive")
    source.write_text('{"to": "a", "n": 1}\n{"to": "b", "n": 2}\n')
    master = ("--master", "local[2]")
    done = cli("pipeline", "import", "orders", str(source), "--partition-by", "to", *master)
    assert (done.code, done.stdout.split(",")[0]) == (0, "2 messages imported to orders"), done.stderr
    done = cli("pipeline", "archive", "orders", "--archive", archive, *master)
    assert done.stdout.startswith(f"2 messages archived at {archive} in 1 file")
    assert "retain_until_archived=true" in done.stderr
    done = cli("pipeline", "archive", "orders", "--archive", archive, *master)
    assert done.stdout.startswith(f"0 messages archived at {archive}, nothing new")
    cli("push", "orders", '{"n": 3}')
    cli("pipeline", "archive", "orders", "--archive", archive, *master)
    done = cli("pipeline", "compact", "--archive", archive, "--grace", "2h", *master)
    assert done.lines[0].startswith(f"2 files of {archive} became 1, 3 messages, 0.0 MB became 0.0 MB")
    assert done.lines[1] == "the old files are kept for 2 h; the next job after that deletes them"
    done = cli("pipeline", "compact", "--archive", archive, *master)
    assert done.stdout.startswith(f"nothing to compact at {archive}")
    done = cli("pipeline", "replay", "orders", "--to", "copy", "--archive", archive, "--group", "late", *master)
    assert done.lines[0].startswith("3 messages replayed from orders to copy")
    assert done.lines[1] == "group late continues in orders where the replay ended"
    done = cli("pipeline", "replay", "orders", "--to", "copy", "--archive", archive, "--json", *master)
    assert (done.json["messages"], done.json["duplicates"]) == (0, 3)
    done = cli("pipeline", "analytics", "--reports", str(tmp_path / "reports"), *master)
    assert done.lines[0].startswith("6 messages of 2 queues analysed"), done.stderr
    (report,) = (tmp_path / "reports").glob("analytics-*.html")
    assert done.lines[-1] == f"healthy; report: {report}"
    done = cli("pipeline", "analytics", "copy", "--reports", str(tmp_path / "reports"), "--json", *master)
    assert (done.json["queues"], done.json["messages"], done.json["findings"]) == (["copy"], 3, [])


def test_a_bar_shows_progress(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of every job, on a terminal, and not in a pipe."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    for module in (pipeline, spark_job):
        monkeypatch.setattr(module, "error_console", lambda: console)
    source, archive = tmp_path / "orders.csv", str(tmp_path / "archive")
    source.write_text("id\n1\n2\n3\n")
    master = ("--master", "local[2]")
    cli("pipeline", "import", "orders", str(source), *master)
    cli("pipeline", "archive", "orders", "--archive", archive, "--file-messages", "2", *master)
    cli("pipeline", "compact", "--archive", archive, *master)
    done = cli("pipeline", "replay", "orders", "--to", "copy", *master)
    assert done.stdout.startswith("3 messages replayed from orders to copy")
    for what in ("importing", "archiving", "compacting", "replaying"):
        assert re.search(rf"{what} .*3/3", screen.getvalue()), what


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("analytics", "q", "--pattern", "x"), "the queues must be selected in exactly one way"),
        (("archive", "--archive", "x"), "the queues must be selected in exactly one way"),
        (("compact", "--archive", "x", "--grace", "long"), "is not a duration"),
        (("import", "q", "data.xml"), "unknown format"),
        (("replay", "q", "--to", "copy", "--since", "yesterday"), "neither a time nor an age"),
    ],
)
def test_wrong_arguments(cli: Cli, arguments: tuple[str, ...], message: str):
    done = cli("pipeline", *arguments)
    assert done.code == 1
    assert message in done.stderr
