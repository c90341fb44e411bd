"""What docs/cli.md shows is what works."""

import re
import subprocess
from pathlib import Path

import pytest

from skep.cli import app
from skep.cli.examples import commands_of
from tests.cli.process import SKEP, environment

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
# Of output.
BEGINNINGS = (
    "queued|leased|orders|numbers/|customer-7|queue|partition|group|billing|id|letters|when|0 |1,000|5 queues|servers"
)


@pytest.mark.timeout(400)  # some fifty processes, one after the other
def test_the_examples_run_one_after_the_other(database_url: str, tmp_path: Path):
    commands = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    path = f"{SKEP.parent}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=tmp_path,
        env=environment(SKEP_DATABASE_URL=database_url, PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert printed(done.stdout) >= printed(PAGE)


def printed(text: str) -> set[str]:
    """Return the lines of output without what differs from run to run: times, ids, widths."""
    lines = re.findall(rf"^(?:{BEGINNINGS}) ?.*$", text, re.MULTILINE)
    return {
        " ".join(re.sub(r"\d+ (?:s|min) ago|[\d-]{10} [\d:]{8}|[0-9a-f-]{36}", "…", line).split()) for line in lines
    }


def test_every_command_is_there():
    assert [name for name, _ in commands_of(app) if f"skep {name}" not in PAGE] == []
