"""The Spark tutorial: its commands are run, line by line, and print what the page shows."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.spark.work import Work

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark-tutorial.md").read_text()
STEPS = re.findall(r"^\$ (.*)\n((?:[^$`].*\n)*)", PAGE, re.MULTILINE)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def python(work: Work, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Run an example on the running Spark, whose environment and directory are not the reader's."""
    monkeypatch.chdir(work.home)
    monkeypatch.setenv("SKEP_DATABASE_URL", work.url)

    def run(path: str) -> None:
        text = (ROOT / path).read_text().replace('"checkpoints/', f'"{work.home}/checkpoints/')
        if "url" not in text:
            text = text.replace('.format("skep")', f'.format("skep").option("url", "{work.url}")')
        exec(compile(text, path, "exec"), {})

    return run


def test_the_tutorial(cli: Cli, work: Work, python: Callable[[str], None]):
    for line, shown in STEPS:
        program, *arguments = shlex.split(line)
        if program == "python":
            python(*arguments)
            continue
        done = cli(*arguments)
        assert (program, done.code) == ("skep", 0), (line, done.stderr)
        assert _timeless(done.stdout, work.home) >= _timeless(shown, Path("/home/ann/skep")), line
    assert [line.split()[:3] for line, _ in STEPS if " pipeline " in line] == [
        ["skep", "pipeline", name] for name in ("archive", "replay", "analytics")
    ]
    assert len(work.log("orders.again")) == 5
    assert [path.suffix for path in work.home.glob("archive/queue=orders/*/*")] == [".parquet"]
    (report,) = work.home.glob("reports/analytics-*.html")
    assert "orders.again" in report.read_text()


def test_a_queue_moves_to_another_server(
    work: Work,
    work_on: Callable[[str], Work],
    python: Callable[[str], None],
    new_database: Callable[[str], str],
    template: str,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
):
    """In order, each message once; groups continue after it, and both servers can be read together."""
    new = work_on(new_database(template))
    monkeypatch.setenv("NEW_DATABASE_URL", new.url)
    work.spread("orders", 30, partitions=3)
    python("examples/move_queue.py")
    work.spread("orders", 12, partitions=4)
    python("examples/move_queue.py")
    assert len(work.log("orders")) == 42
    assert new.log("orders") == work.log("orders")
    monkeypatch.setenv("SKEP_DATABASE_URL", new.url)
    assert cli("group", "seek", "billing", "orders", "end").code == 0
    new.push("orders", "new", partition="p1")
    done = cli("pop", "orders", "--group", "billing", "--batch", "100")
    assert len(done.lines) == 1, done.lines
    assert '"new"' in done.stdout
    assert work.read("orders").unionByName(new.read("orders")).count() == 85


def _timeless(text: str, home: Path) -> set[str]:
    """Return the lines of an output, in any order, without times and paths."""
    return {re.sub(r"[\d.]+ m?s\b", "…", line.replace(str(home), "")) for line in text.splitlines()}
