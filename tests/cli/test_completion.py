"""Completion in a real bash, and the output for shells that are not on every machine."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from skep import Skep, embedded
from tests.cli.process import SKEP, environment, run

ASK = """
source <("$1" completion bash)
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"$(complete -p skep | sed 's/.*-F \\([^ ]*\\).*/\\1/')" skep
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(line: str, **environ: str) -> list[str]:
    """Return the completions of bash for the last word, which may be empty."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    environ = environment(PATH=f"{SKEP.parent}:{os.environ['PATH']}", **environ)
    command = ["bash", "--norc", "-c", ASK, "bash", SKEP, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def names(mq: Skep) -> Skep:
    mq.push_many((name, 1) for name in ("orders", "orders.eu", "payments", "with a space", "$(reboot)", "`reboot`"))
    mq.subscribe("billing", "orders")
    mq.queue("payments").pop(group="bank")
    return mq


def test_commands_and_options():
    offered = set(complete("skep "))
    assert {"serve", "push", "queue", "dead-letter", "doctor", "completion"} <= offered
    assert "dlq" not in offered
    assert complete("skep qu") == ["queue"]
    assert complete("skep queue sh") == ["show"]
    assert complete("skep group list --qu") == ["--queue"]
    assert complete("skep completion ") == ["bash", "zsh", "fish"]


def test_queue_names(names: Skep, database_url: str):
    there = {"SKEP_DATABASE_URL": database_url}
    assert complete("skep queue show ", **there) == ["orders", "orders.eu", "payments"]
    assert complete("skep push ord", **there) == ["orders", "orders.eu"]
    assert complete("skep dead-letter list --queue p", **there) == ["payments"]
    parts = conninfo_to_dict(database_url)
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**parts)
    assert complete(f"skep tail --database-url {url} p") == ["payments"]


def test_group_names(names: Skep, database_url: str):
    there = {"SKEP_DATABASE_URL": database_url}
    assert complete("skep group show b", **there) == ["bank", "billing"]
    assert complete("skep pop orders --group bi", **there) == ["billing"]
    assert complete("skep group seek billing orders ", **there) == ["beginning", "end"]


def test_no_names_without_a_database():
    assert complete("skep queue show ", SKEP_DATABASE_URL="postgresql://ann@127.0.0.1:1/shop") == []
    assert complete("skep queue show ", SKEP_DATABASE_URL="nonsense") == []


def test_the_embedded_postgres_is_queried_only_if_it_runs(data_dir: Path):
    here = {"SKEP_DATA_DIR": str(data_dir)}
    assert complete("skep queue show ", **here) == []
    assert list(data_dir.iterdir()) == []
    with Skep(data_dir=data_dir) as mq:
        mq.queue("orders").push(1)
        assert complete("skep queue show ", **here) == ["orders"]
        assert embedded.running_url(data_dir) is not None
    assert embedded.running_url(data_dir) is None
    assert complete("skep queue show ", **here) == []


@pytest.mark.parametrize(
    ("shell", "asked"), [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})], ids=["zsh", "fish"]
)
def test_other_shells(shell: str, asked: dict[str, str]):
    script = run("completion", shell).stdout
    assert f"_SKEP_COMPLETE=complete_{shell}" in script
    done = run(_SKEP_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_ARGS="skep queue sh", **asked)
    assert "show" in done.stdout
    assert "configure" not in done.stdout


def test_an_unsupported_shell():
    assert run("completion", "tcsh").returncode == 2
