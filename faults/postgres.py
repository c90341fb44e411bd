"""A private PostgreSQL server that can be killed, and its standby."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from faults.processes import DIE_WITH_PARENT
from skep.embedded import binaries
from skep.embedded.account import Account, server_account

DATABASE = "skep"
SECONDS = 60
# Commits are durable, everything else is small. Trust authentication is safe: it listens on this machine only.
SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "max_connections": "200",
    "shared_buffers": "'128MB'",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "autovacuum_naptime": "5",
    "deadlock_timeout": "'300ms'",
    "log_lock_waits": "off",
    "log_checkpoints": "off",
    "shared_preload_libraries": "''",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Programs:
    """The programs of PostgreSQL, and the account that runs them, which must not be root."""

    def __init__(self, home: Path) -> None:
        home.chmod(0o711)
        self.account: Account | None = server_account(home / "none")
        self.bin = binaries.accessible(binaries.find(None, None), self.account, home / "programs").bin_dir

    def own(self, path: Path) -> Path:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.account:
            shutil.chown(path, self.account.uid, self.account.gid)
        return path

    def popen(self, command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[Any]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*DIE_WITH_PARENT, *command],
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
                cwd="/",
                **self._account(),
            )

    def run(self, name: str, *arguments: str, check: bool = True) -> int:
        command = [str(self.bin / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._account())
        if check and done.returncode:
            raise RuntimeError(f"{name} failed: {done.stdout}{done.stderr}")
        return done.returncode

    def _account(self) -> dict[str, Any]:
        account = self.account
        return {"user": account.uid, "group": account.gid, "extra_groups": []} if account else {}


class Postgres:
    """One cluster. The methods block: call them in a thread."""

    def __init__(self, programs: Programs, home: Path, name: str, environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.port = free_port()
        self.data = home / name
        self.log = log
        self._programs, self._environment = programs, environment
        self._process: subprocess.Popen[Any] | None = None

    def url(self, port: int | None = None, database: str = DATABASE) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def create(self, settings: Mapping[str, str]) -> None:
        options = (
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--wal-segsize=4",
            "--no-sync",
        )
        self._programs.run("initdb", "--pgdata", str(self._programs.own(self.data)), "--no-instructions", *options)
        self._configure({**SETTINGS, **settings})
        self.start()
        with psycopg.connect(self.url(database="postgres"), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {DATABASE}")

    def follow(self, primary: "Postgres", port: int | None = None) -> None:
        """Become a standby of `primary`. `port` is that of a proxy in between."""
        where = ("--pgdata", str(self._programs.own(self.data)), "--dbname", primary.url(port, "postgres"))
        self._programs.run("pg_basebackup", *where, "--write-recovery-conf", "--checkpoint=fast", "--no-sync")
        self._configure({})
        self.start()

    def _configure(self, settings: Mapping[str, str]) -> None:
        lines = [f"{name} = {value}" for name, value in settings.items()]
        sockets = f"unix_socket_directories = '{self.data}'"
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("\n".join([*lines, f"port = {self.port}", sockets, ""]))

    def start(self, patience: float = SECONDS) -> None:
        """Start the server and wait until it accepts connections. Retry while processes of a killed one are left."""
        deadline = time.monotonic() + patience
        while not self.is_ready():
            if self._process is None or self._process.poll() is not None:
                command = [str(self._programs.bin / "postgres"), "-D", str(self.data)]
                self._process = self._programs.popen(command, self._environment, self.log)
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL {self.name} did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        with contextlib.suppress(psycopg.Error):
            psycopg.connect(self.url(database="postgres"), connect_timeout=2).close()
            return True
        return False

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, mode: str = "fast") -> None:
        """Stop the server with pg_ctl: smart, fast or immediate."""
        if self.alive:
            self._programs.run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "20", "stop", check=False)
            self.kill()

    def kill(self) -> None:
        """Kill the postmaster; the other processes notice it and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def kill_backend(self, pid: int) -> None:
        """Kill one backend: the postmaster then ends all others and recovers."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def promote(self) -> None:
        self._programs.run("pg_ctl", "-D", str(self.data), "-w", "promote")
