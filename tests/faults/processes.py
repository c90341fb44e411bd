"""Client processes: read their output, stop, continue and kill them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Process:
    """A job of `tests.faults.worker`."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.faults.worker", *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
        )
        assert self.process.stdin
        assert self.process.stdout
        self._input, self._output = self.process.stdin, self.process.stdout

    def read(self) -> str:
        line = self._output.readline()
        assert line, "the process ended unexpectedly"
        return line.strip()

    def write(self) -> None:
        self._input.write("\n")
        self._input.flush()

    def stop(self) -> None:
        """Send SIGSTOP, like a suspended machine or a paused container."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> list[str]:
        """Send SIGKILL, and return the rest of the output."""
        self.process.kill()
        self.process.wait()
        return self._output.read().split()

    def close(self) -> None:
        self.kill()
        self._input.close()
        self._output.close()


Start = Callable[..., Process]


@contextmanager
def processes() -> Generator[Start]:
    """Start processes; all are killed at the end."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.close()
