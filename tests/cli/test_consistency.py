"""Rules for every command: examples in the help, JSON, errors with a hint, colours only on terminals."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import typer
from pyarrow.fs import FileSystem

from skep import Skep
from skep.cli import app
from skep.cli.examples import EXAMPLES, commands_of
from skep.config import FLAGS, flag_name
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, Terminal, environment, on_terminal, run, wait_until

NAMES = [name for name, _ in commands_of(app)]
NO_JSON = {"serve", "completion"}
NO_DATABASE = {"completion"}
NOWHERE = "postgresql://ann:secret@127.0.0.1:1/shop"
COLOUR = re.compile(r"\x1b\[[\d;]*3\dm")  # escape sequences that set a colour


def resolve(arguments: list[str]) -> Any:
    """Parse a command line as the program does, and return the command."""
    command: Any = typer.main.get_command(app)
    context: Any = None
    name = "skep"
    while True:
        context = command.make_context(name, list(arguments), parent=context)
        if not hasattr(command, "commands"):
            return command
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])


def arguments_of(example: str) -> list[str]:
    """Return the arguments of `skep`, without pipes and redirections."""
    line = re.sub(r" > \S+$", "", example.rsplit(" | ", maxsplit=1)[-1])
    program, *arguments = shlex.split(line)
    assert program == "skep"
    return arguments


def options_of(name: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    return {option for param in command.params for option in param.opts}


def test_invalid_arguments_do_not_parse():
    for arguments in (["queue", "list", "--nonsense"], ["queue", "nonsense"], ["group", "seek", "billing"]):
        with pytest.raises(Exception, match="No such option|No such command|Missing parameter"):
            resolve(arguments)


def test_every_flag_is_an_option_of_serve():
    assert {flag_name(name) for name in FLAGS} == options_of("serve") - {"--help"}


def test_every_command_has_examples():
    assert sorted(EXAMPLES) == sorted(NAMES)
    assert all(EXAMPLES.values())


@pytest.mark.parametrize("name", NAMES)
def test_examples_parse_and_are_shown(name: str, cli: Cli):
    shown = " ".join(cli(*name.split(), "--help").stdout.split())
    for example in EXAMPLES[name]:
        assert arguments_of(example)[: len(name.split())] == name.split()
        resolve(arguments_of(example))
        assert " ".join(example.split()) in shown


def test_examples_use_schemes_that_arrow_knows():
    schemes = set(re.findall(r"(\w+)://bucket", str(EXAMPLES)))
    assert schemes
    for scheme in schemes:  # with a region, so that Arrow does not look it up
        FileSystem.from_uri(f"{scheme}://bucket/archive?region=eu-central-1")


@pytest.mark.parametrize("name", NAMES)
def test_common_options(name: str):
    options = options_of(name)
    assert ("--json" in options) == (name not in NO_JSON)
    assert ("--database-url" in options) == (name not in NO_DATABASE)


CONNECTING = [name for name in NAMES if name not in {*NO_DATABASE, "serve", "doctor"} and "pipeline" not in name]


@pytest.mark.parametrize("name", CONNECTING)
def test_an_unreachable_database_is_an_error_with_a_hint(name: str, cli: Cli):
    (arguments, *_) = [arguments_of(example) for example in EXAMPLES[name]]
    yes = ["--yes"] if "--yes" in options_of(name) and "--yes" not in arguments else []
    done = cli(*arguments, *yes, "--database-url", NOWHERE, stdin=b"1\n")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == "error: cannot connect to postgresql://ann@127.0.0.1:1/shop"
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert "secret" not in done.stderr


def test_colours_on_a_terminal_only(database_url: str, mq: Skep, monkeypatch: pytest.MonkeyPatch):
    mq.subscribe("billing", "orders")
    arguments = ("group", "list", "--database-url", database_url)
    assert COLOUR.search(on_terminal(*arguments))
    assert "\x1b" not in run(*arguments).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(on_terminal(*arguments))
    assert not COLOUR.search(on_terminal("group", "--help"))


def test_errors_have_a_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch):
    def output() -> str:
        with Terminal("queue", "list", "--database-url", "mysql://db/shop") as terminal:
            return terminal.wait_for("hint")

    assert COLOUR.search(output())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(output())
    assert "\x1b" not in run("queue", "list", "--database-url", "mysql://db/shop").stderr


def test_stopped_by_ctrl_c(database_url: str, connect: Callable[..., psycopg.Connection]):
    command = [SKEP, "pop", "orders", "--wait", "600", "--database-url", database_url]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_until(connect(), "SELECT EXISTS (SELECT FROM skep.subscriptions)")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
