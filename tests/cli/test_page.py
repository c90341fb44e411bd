"""What docs/cli.md shows is what works, and what other pages show is a command."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from skep.cli import app
from skep.cli.examples import commands_of
from tests.cli.process import SKEP, environment
from tests.cli.test_consistency import NAMES, resolve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"`skep ([^`\n]+)`|^(?:\$ )?skep (.*)$", re.MULTILINE)
SHELL = re.compile(r"\s(?:\|\|?|>|2>|&&|#|\\).*")
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_other_pages_are_some(page: Path):
    for inline, line in COMMAND.findall(page.read_text()):
        arguments = shlex.split(SHELL.sub("", inline or line))
        named = any(f"{name} ".startswith(f"{' '.join(arguments)} ") for name in NAMES)  # and no more than that
        if not (named or "…" in arguments or "--help" in arguments):
            resolve(arguments)
