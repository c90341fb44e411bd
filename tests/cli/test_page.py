"""The examples of docs/cli.md run and print what it shows; commands on other pages parse."""

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
# First words of the output lines that are compared.
BEGINNINGS = (
    "queued|leased|orders|numbers/|customer-7|queue|partition|group|billing|default|id|dead letters|when"
    "|0 |1,000|5 queues|servers"
)


@pytest.mark.timeout(400)  # about fifty processes, one after the other
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
    """Return the output lines without times, ids and column widths, which differ in every run."""
    lines = re.findall(rf"^(?:{BEGINNINGS}) ?.*$", text, re.MULTILINE)
    return {
        " ".join(re.sub(r"\d+ (?:s|min) ago|[\d-]{10} [\d:]{8}|[0-9a-f-]{36}", "…", line).split()) for line in lines
    }


def test_every_command_is_on_the_page():
    assert [name for name, _ in commands_of(app) if f"skep {name}" not in PAGE] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_all_pages_parse(page: Path):
    for inline, line in COMMAND.findall(page.read_text()):
        arguments = shlex.split(SHELL.sub("", inline or line))
        is_prefix = any(f"{name} ".startswith(f"{' '.join(arguments)} ") for name in NAMES)
        if not (is_prefix or "…" in arguments or "--help" in arguments):
            resolve(arguments)
