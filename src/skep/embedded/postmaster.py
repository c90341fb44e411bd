"""Run PostgreSQL: its arguments, its port and its process."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path

from skep.embedded.account import Account
from skep.embedded.binaries import Binaries
from skep.embedded.locks import POLL_SECONDS
from skep.embedded.process import spawn
from skep.embedded.state import StateDir

# Below the range from which Linux takes the ports of outgoing connections: none of them can take our port while
# PostgreSQL restarts.
_PORTS = range(15_000, 32_000)
_SOCKET_PATH_LIMIT = 108
_LOG_LIMIT = 16 * 1024 * 1024
_PID_LINE, _STATUS_LINE = 0, 7  # of postmaster.pid


@dataclass(frozen=True, slots=True)
class Postmaster:
    """How to run PostgreSQL on one data directory."""

    state: StateDir
    binaries: Binaries
    account: Account | None
    settings: Mapping[str, str]

    def launch(self, port: int, server_lock: int) -> subprocess.Popen[bytes]:
        """Start PostgreSQL. All its processes inherit the lock, so it is free only when the last of them has ended."""
        self._remove_leftovers()
        with _open_log(self.state.postgres_log) as log:
            # If the supervisor dies, SIGINT stops PostgreSQL: its fast, clean shutdown.
            return spawn(self._command(port), self.account, death_signal=signal.SIGINT, output=log, keep=[server_lock])

    def _command(self, port: int) -> list[str | Path]:
        # Ours override the caller's settings, which must not open the server to the network.
        ours = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": self._socket_directory(port),
        }
        options = [f"-c{name}={value}" for name, value in {**self.settings, **ours}.items()]
        return [self.binaries.bin_dir / "postgres", "-D", self.state.pgdata, *options]

    def _socket_directory(self, port: int) -> str:
        """Return the setting for a private socket directory, or an empty one if the path would be too long."""
        socket_file = self.state.sockets / f".s.PGSQL.{port}"
        if len(os.fsencode(socket_file)) >= _SOCKET_PATH_LIMIT:
            return ""
        quoted = str(self.state.sockets).replace('"', '""')
        return f'"{quoted}"'

    def _remove_leftovers(self) -> None:
        """Remove the files of a killed server. It has ended, because we have its lock.

        PostgreSQL itself only checks whether a process with the old id exists. In a container, with few process ids,
        that is often true, and the server would not start.
        """
        left = _pid_file(self.state)
        if left and left[_PID_LINE] == str(self.state.read_record().postmaster):
            (self.state.pgdata / "postmaster.pid").unlink()
        self.state.sockets.mkdir(mode=0o700, exist_ok=True)
        if self.account is not None:
            os.chown(self.state.sockets, self.account.uid, self.account.gid, follow_symlinks=False)
        for file in self.state.sockets.iterdir():
            file.unlink()

    def await_ready(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until PostgreSQL accepts connections. Return False if it ends before. Recovery may take any time."""
        while process.poll() is None:
            lines = _pid_file(self.state)
            if len(lines) > _STATUS_LINE and lines[_PID_LINE] == str(process.pid) and lines[_STATUS_LINE] == "ready":
                return True
            time.sleep(POLL_SECONDS)
        return False


def _pid_file(state: StateDir) -> list[str]:
    try:
        return [line.strip() for line in (state.pgdata / "postmaster.pid").read_text().splitlines()]
    except FileNotFoundError:
        return []


def _open_log(path: Path) -> BufferedWriter:
    if path.exists() and path.stat().st_size > _LOG_LIMIT:
        path.replace(path.with_suffix(".log.1"))
    path.touch(mode=0o600)
    return path.open("ab")


def free_port(preferred: int) -> int:
    """Return the preferred port if it is free, else another one."""
    if preferred and is_free(preferred):
        return preferred
    for port in random.sample(_PORTS, len(_PORTS)):
        if is_free(port):
            return port
    return 0  # PostgreSQL refuses it with an error


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        # As PostgreSQL does: connections of an earlier server may still be closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
