"""The command line as a user meets it: a process, its output and its exit code."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import skep
from skep.engine.install import verify
from skep.engine.script import script

SKEP = Path(sys.executable).with_name("skep")
UNSET = ("SKEP_DATABASE_URL", "SKEP_DATA_DIR", "SKEP_DEBUG")


def environment(**changes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSET} | changes


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SKEP, *arguments], env=environment(**environ), capture_output=True, text=True, check=False, timeout=60
    )


@contextmanager
def serving(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run `skep serve` until it says that it is ready; give the process and what it said."""
    command = [SKEP, "serve", *arguments]
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
        ("mysql://ann:secret@db/shop", "error: the database URL starts with mysql://, not postgresql://"),
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


def test_debug_shows_the_traceback():
    assert "Traceback" in run("install", "--database-url", "mysql://db/shop", SKEP_DEBUG="1").stderr


def test_install_asks_for_a_database():
    done = run("install")
    assert done.returncode == 1
    assert "SKEP_DATABASE_URL" in done.stderr


def test_install_installs_and_says_so(empty_database_url: str):
    first, second = (run("install", "--database-url", empty_database_url) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert "0001_" in first.stdout
    assert "up to date" in second.stdout
    with psycopg.connect(empty_database_url) as connection:
        verify(connection)


def test_install_prints_the_sql():
    assert run("install", "--print").stdout == script()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_brings_its_own_database(data_dir: Path, stop: signal.Signals):
    with serving("--data-dir", str(data_dir)) as (process, said):
        (url,) = re.findall(r"^  (postgresql://\S+)$", said, re.MULTILINE)
        assert "skep.push" in said
        with psycopg.connect(url) as connection:
            verify(connection)
        process.send_signal(stop)
        assert process.wait(30) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_serve_uses_your_database_and_keeps_your_password(empty_database_url: str):
    with serving("--database-url", empty_database_url) as (process, said):
        with psycopg.connect(empty_database_url) as connection:
            verify(connection)
            assert not connection.info.password or connection.info.password not in said
        process.terminate()
        assert process.wait(30) == 0
