"""The command line as a process: its output and its exit code."""

import json
import re
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import skep
from skep import embedded
from skep.engine.install import install, verify
from skep.engine.script import script
from skep.engine.sources import Migration
from tests.cli.conftest import Cli
from tests.cli.process import SKEP, Terminal, environment, run, wait_until
from tests.conftest import FAST
from tests.engine.servers import server
from tests.engine.tiny import THING, TINY
from tests.postgres_binaries import MAJORS


@contextmanager
def serving(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run `skep serve` until it is ready; yield the process and its output."""
    command = [SKEP, "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        try:
            for line in process.stdout:
                said += line
                if "Ctrl-C" in line:
                    break
            yield process, said
        finally:
            if process.poll() is None:
                process.terminate()


def test_version():
    assert run("--version").stdout == f"skep {skep.__version__}\n"


def test_help_names_the_settings():
    assert all(name in run("serve", "--help").stdout for name in ("--database-url", "SKEP_DATABASE_URL", "--data-dir"))


@pytest.mark.parametrize("arguments", [["nonsense"], ["serve", "--nonsense"], ["install", "--database-url"]])
def test_wrong_usage_exits_with_2(arguments: list[str]):
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "install"])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://ann:secret@db/shop", "error: the database URL must start with postgresql://, got mysql://"),
        ("postgresql://ann:secret@127.0.0.1:1/shop", "error: cannot connect to postgresql://ann@127.0.0.1:1/shop"),
    ],
)
def test_errors_are_a_line_and_a_hint(command: str, url: str, says: str):
    done = run(command, SKEP_DATABASE_URL=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[0] == says
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "push orders 1",
        "pop orders",
        "tail orders",
        "queue list",
        "group list",
        "dead-letter list",
        "upkeep",
        "upkeep --once",
    ],
)
def test_a_database_that_cannot_be_reached(cli: Cli, command: str):
    done = cli(*command.split(), "--database-url", "postgresql://ann:secret@127.0.0.1:1/shop")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: cannot connect to postgresql://ann@127.0.0.1:1/shop\n")
    assert done.stderr.splitlines()[-1].startswith("hint: ")
    assert "secret" not in done.stderr


@pytest.mark.parametrize("noun", ["queue", "group", "dead-letter"])
def test_a_noun_without_a_command_shows_its_help(cli: Cli, noun: str):
    done = cli(noun)
    assert f"Usage: skep {noun}" in done.stdout + done.stderr


def test_debug_shows_the_traceback():
    assert "Traceback" in run("install", "--database-url", "mysql://db/shop", SKEP_DEBUG="1").stderr


def test_install_needs_a_database():
    done = run("install")
    assert done.returncode == 1
    assert "SKEP_DATABASE_URL" in done.stderr


def test_install(empty_database_url: str):
    first, second = (run("install", "--database-url", empty_database_url) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert "0001_" in first.stdout
    assert "up to date" in second.stdout
    with psycopg.connect(empty_database_url) as connection:
        verify(connection)


def test_uninstall_asks_first(cli: Cli, database_url: str):
    declined = cli("uninstall", stdin=b"n\n")
    assert (declined.code, declined.stdout) == (1, "")
    assert "Delete Skep with all its queues and messages from postgresql://" in declined.stderr
    assert cli("queue", "list").code == 0
    done = cli("uninstall", stdin=b"y\n")
    assert (done.code, "Skep is uninstalled" in done.stdout) == (0, True)
    assert "Skep is not installed" in cli("uninstall", "--yes").stderr
    assert cli("install").code == 0
    assert cli("uninstall", "--yes", "--json").json == {"uninstalled": True}


def test_install_without_the_right_to_create_roles(cli: Cli):
    """On a server of its own: the roles belong to all databases of a server."""
    with server(max(MAJORS)) as url:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("CREATE ROLE bob LOGIN PASSWORD 'secret'")
            admin.execute("CREATE DATABASE bob OWNER bob")
        as_bob = make_conninfo(url, user="bob", password="secret", dbname="bob")
        done = cli("install", "--database-url", as_bob)
        assert done.stdout.endswith("; roles left out: skep_producer, skep_consumer, skep_admin\n")
        assert "hint: let a user with CREATEROLE create the roles" in done.stderr
        again = cli("install", "--database-url", as_bob, "--json").json
        assert again["missing_roles"] == ["skep_producer", "skep_consumer", "skep_admin"]
        roles = next(line for line in cli("doctor", "--database-url", as_bob).lines if " roles " in line)
        assert roles.startswith("warn")
        assert "bob may push, pop, administer; skep_producer, skep_consumer, skep_admin do not exist" in roles


@pytest.mark.parametrize("command", ["queue list", "doctor", "serve --port 0"])
def test_the_first_edition_in_the_embedded_database(
    cli: Cli, data_dir: Path, command: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SKEP_DATABASE_URL")
    with embedded.start(data_dir, settings=FAST) as started:
        install(started.url, replace(TINY, migrations=(Migration("0001_create_log", THING.sql),)))
        monkeypatch.setattr("skep.engine.install.packaged", lambda: TINY)
        done = cli(*command.split(), "--data-dir", str(data_dir))
    assert done.code == 1
    said = done.stdout + done.stderr
    assert f"the embedded database in {data_dir} holds the first edition of Skep" in said
    assert f"drain it and move the folder {data_dir} away, or choose another folder with --data-dir" in said


def test_install_prints_the_sql():
    assert run("install", "--print").stdout == script()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_starts_an_embedded_database(data_dir: Path, stop: signal.Signals):
    with serving("--data-dir", str(data_dir)) as (process, said):
        (url,) = re.findall(r"^  (postgresql://\S+)$", said, re.MULTILINE)
        (push,) = re.findall(r"^  curl (http://localhost:\d+/api/v1/push -d .*)$", said, re.MULTILINE)
        target, _, body = shlex.split(push)
        with urllib.request.urlopen(target, body.encode()) as response:
            assert b'"queued"' in response.read()
        with psycopg.connect(url) as connection:
            verify(connection)
        process.send_signal(stop)
        assert process.wait(30) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_serve_uses_a_given_database_and_hides_its_password(empty_database_url: str):
    with serving("--database-url", empty_database_url) as (process, said):
        with psycopg.connect(empty_database_url) as connection:
            verify(connection)
            assert not connection.info.password or connection.info.password not in said
        process.terminate()
        assert process.wait(30) == 0


def test_serve_runs_upkeep(database_url: str):
    with serving("--database-url", database_url) as (process, _), psycopg.connect(database_url) as connection:
        connection.autocommit = True
        connection.execute("""SELECT skep.configure_queue('orders', '{"max_size": 1}')""")
        connection.execute("SELECT skep.push('orders', to_jsonb(n)) FROM generate_series(1, 5) n")
        wait_until(connection, "SELECT count(*) = 1 FROM skep.messages")
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read().endswith("Skep has stopped.\n")


def test_failing_upkeep_does_not_stop_serve(database_url: str):
    with serving("--database-url", database_url) as (process, _), psycopg.connect(database_url) as connection:
        connection.autocommit = True
        connection.execute("DROP FUNCTION skep.expire_leases()")
        assert process.stdout is not None
        assert any("lease_expiry failed: " in line for line in process.stdout)
        wait_until(connection, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'skep'")
        process.terminate()
        assert process.wait(30) == 0


def test_commands_share_the_embedded_database(data_dir: Path):
    pushed = run("push", "orders", '{"id": 1}', "--data-dir", str(data_dir))
    assert (pushed.returncode, pushed.stderr) == (0, "")
    popped = run("pop", "orders", "--json", SKEP_DATA_DIR=str(data_dir))
    assert json.loads(popped.stdout)["payload"] == {"id": 1}


def test_a_database_without_skep(cli: Cli, empty_database_url: str):
    done = cli("queue", "list", "--database-url", empty_database_url)
    assert done.code == 1
    assert "Skep is not installed" in done.stderr
    assert "hint: run `skep install`" in done.stderr


def test_install_as_json(empty_database_url: str):
    done = run("install", "--json", "--database-url", empty_database_url)
    report = json.loads(done.stdout)
    assert (report["functions"], report["migrations"][0]) == (True, "0001_create_skep")
    assert report["version"] == len(report["migrations"])


def test_install_shows_its_progress_on_a_terminal(empty_database_url: str):
    with Terminal("install", "--database-url", empty_database_url) as terminal:
        said = terminal.wait_for("schema version")
        assert terminal.process.wait(30) == 0
    assert "Installing: running " in said
