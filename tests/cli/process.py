"""`skep` as a process of its own."""

import contextlib
import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from typing import LiteralString

import psycopg

SKEP = Path(sys.executable).with_name("skep")
UNSET = ("SKEP_DATABASE_URL", "SKEP_DATA_DIR", "SKEP_DEBUG")


def environment(**changes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSET} | changes


def run(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SKEP, *arguments],
        env=environment(**environ),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def read_terminal(controller: int) -> str:
    """Return what was written to a pseudoterminal whose other end is closed."""
    written = b""
    with contextlib.suppress(OSError):  # at the end it is an input/output error
        while chunk := os.read(controller, 4096):
            written += chunk
    os.close(controller)
    return written.decode()


def on_terminal(*arguments: str) -> str:
    """Return what `skep` writes to a terminal."""
    controller, terminal = pty.openpty()
    env = environment(TERM="xterm", COLUMNS="200")
    subprocess.run([SKEP, *arguments], env=env, stdout=terminal, stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    return read_terminal(controller)


def wait_until(connection: psycopg.Connection, query: LiteralString) -> None:
    """Return once this is true in the database."""
    deadline = time.monotonic() + 60
    while connection.execute(query).fetchone() != (True,):
        assert time.monotonic() < deadline, query
        time.sleep(0.05)
