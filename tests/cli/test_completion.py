"""Completion, as a real bash does it; and the answers for shells that are not on every machine."""

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
    """Return what bash offers for the last word, which may have no letter yet."""
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
    assert {"serve", "push", "queue", "doctor", "completion"} <= set(complete("skep "))
    assert complete("skep qu") == ["queue"]
    assert complete("skep queue sh") == ["show"]
    assert complete("skep group list --qu") == ["--queue"]
    assert complete("skep completion ") == ["bash", "zsh", "fish"]


def test_names_of_queues(names: Skep, database_url: str):
    there = {"SKEP_DATABASE_URL": database_url}
    assert complete("skep queue show ", **there) == ["orders", "orders.eu", "payments"]
    assert complete("skep push ord", **there) == ["orders", "orders.eu"]
    assert complete("skep dlq list --queue p", **there) == ["payments"]
    parts = conninfo_to_dict(database_url)
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**parts)
    assert complete(f"skep tail --database-url {url} p") == ["payments"]


def test_names_of_groups(names: Skep, database_url: str):
    there = {"SKEP_DATABASE_URL": database_url}
    assert complete("skep group show b", **there) == ["bank", "billing"]
    assert complete("skep pop orders --group bi", **there) == ["billing"]
    assert complete("skep group seek billing orders ", **there) == ["beginning", "end"]


def test_no_database_no_names():
    assert complete("skep queue show ", SKEP_DATABASE_URL="postgresql://ann@127.0.0.1:1/shop") == []
    assert complete("skep queue show ", SKEP_DATABASE_URL="nonsense") == []


def test_the_embedded_one_is_asked_only_if_it_runs(data_dir: Path):
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
    answer = run(_SKEP_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_ARGS="skep queue sh", **asked)
    assert "show" in answer.stdout
    assert "configure" not in answer.stdout


def test_no_other_shell():
    assert run("completion", "tcsh").returncode == 2
