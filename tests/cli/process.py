"""Running `skep` as a process, with or without a terminal."""

import codecs
import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any, LiteralString, Self

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
    """Return the output of a pseudoterminal whose other end is closed."""
    written = b""
    with contextlib.suppress(OSError):  # raised at the end of the output
        while chunk := os.read(controller, 4096):
            written += chunk
    os.close(controller)
    return written.decode()


def on_terminal(*arguments: str) -> str:
    """Return the output of `skep` on a terminal."""
    controller, terminal = pty.openpty()
    env = environment(TERM="xterm", COLUMNS="200")
    subprocess.run([SKEP, *arguments], env=env, stdout=terminal, stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    return read_terminal(controller)


def wait_until(connection: psycopg.Connection, query: LiteralString) -> None:
    """Wait until the query returns true."""
    deadline = time.monotonic() + 60
    while connection.execute(query).fetchone() != (True,):
        assert time.monotonic() < deadline, query
        time.sleep(0.05)


class Terminal:
    """`skep` on its own terminal, with Ctrl-C, Ctrl-Z and resizing."""

    def __init__(self, *arguments: str, rows: int = 24, columns: int = 100) -> None:
        self._controller, self._own = pty.openpty()
        self._size(rows, columns)
        self.before = termios.tcgetattr(self._own)
        self.written = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode  # a read can end inside a character
        self.process = subprocess.Popen(
            [SKEP, *arguments],
            env={name: value for name, value in environment(TERM="xterm").items() if name not in ("COLUMNS", "LINES")},
            stdin=self._own,
            stdout=self._own,
            stderr=self._own,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )

    def _size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        self.written = ""
        self._size(rows, columns)

    def type(self, keys: str) -> None:
        self.written = ""
        os.write(self._controller, keys.encode())

    def wait_for(self, text: str) -> str:
        """Wait for a text, and return the output since the last keys or resize."""
        deadline = time.monotonic() + 60
        while text not in self.written:
            ready, _, _ = select.select([self._controller], [], [], 0.1)
            if ready:
                self.written += self._decode(os.read(self._controller, 65536))
            assert time.monotonic() < deadline, (text, self.written)
        return self.written

    def settle(self) -> None:
        """Read until there has been no output for half a second."""
        while select.select([self._controller], [], [], 0.5)[0]:
            self.written += self._decode(os.read(self._controller, 65536))

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._own)
        os.close(self._controller)
