"""Processes of a round: servers and clients, which are killed, stopped, continued and restarted."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
NO_MORE = MappingProxyType({})
# The kernel kills the processes that we have started when we end.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class Child:
    """A program that is restarted whenever it ends, as by a supervisor. `life` is the number of starts."""

    def __init__(self, name: str, log: Path, environment: Mapping[str, str] = NO_MORE) -> None:
        self.name = name
        self._log = log
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
        self.environment = {**clean, "PYTHONPATH": str(ROOT), **environment}
        self.life = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.wanted = False
        self.killed = False  # by us, so its end is expected
        self.unexpected: list[str] = []

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        self.wanted, self.killed = True, False
        self.life += 1
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self.command()], env=self.environment, stdout=log, stderr=log, cwd=ROOT
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.killed = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def stop(self, patience: float = 20) -> None:
        """Send SIGTERM, and kill the process if it does not end."""
        self.wanted = False
        if not self.alive:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + patience
        while self.alive:
            if time.monotonic() > deadline:
                self.unexpected.append(f"{self.name} did not end within {patience:.0f} s")
                self.kill()
            await asyncio.sleep(0.02)

    def restart_if_ended(self) -> None:
        """Restart the process if it has ended."""
        if self.wanted and not self.alive:
            if not self.killed:
                self.record_unexpected_end()
            self.start()

    def record_unexpected_end(self) -> None:
        code = self.process.returncode if self.process else None
        self.unexpected.append(f"{self.name} ended unexpectedly with {code}: {self.log_tail()}")

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace").strip()[-1500:] if self._log.exists() else ""

    def memory(self) -> float:
        """Return the resident memory in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0


class Client(Child):
    """A process of `faults.clients`."""

    def __init__(self, kind: str, name: str, directory: Path, settings: str, environment: Mapping[str, str]) -> None:
        super().__init__(name, directory / f"{name}.log", environment)
        self.kind, self._directory, self._settings = kind, directory, settings

    def command(self) -> list[str]:
        arguments = [self.kind, self.name, str(self.life), str(self._directory), self._settings]
        return [sys.executable, "-m", "faults.clients", *arguments]

    def record_unexpected_end(self) -> None:
        if self.kind != "pop-poison":  # some of its messages kill it
            super().record_unexpected_end()


class Server(Child):
    """`skep serve`, or a build of it that is broken on purpose (see `faults.broken`)."""

    def __init__(self, name: str, log: Path, port: int, database_url: str, environment: Mapping[str, str]) -> None:
        super().__init__(name, log, {"SKEP_DATABASE_URL": database_url, "SKEP_PORT": str(port), **environment})
        self.port = port

    def command(self) -> list[str]:
        return [sys.executable, "-m", "faults.serve"]

    def record_unexpected_end(self) -> None:
        """Ignore the end of a server that could not connect to the database at its start."""
        if "cannot connect to" not in self.log_tail()[-600:]:
            super().record_unexpected_end()
