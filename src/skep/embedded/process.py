"""Run PostgreSQL's programs as the right user. They end when the supervisor ends."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from skep.embedded.account import Account
from skep.errors import EmbeddedError

_PR_SET_PDEATHSIG = 1


def spawn(
    command: Sequence[str | Path],
    account: Account | None,
    *,
    death_signal: signal.Signals = signal.SIGKILL,
    stdin: int = subprocess.DEVNULL,
    output: IO[bytes] | int = subprocess.PIPE,
    keep: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that gets `death_signal` when the calling thread ends. Call it from the main thread."""
    try:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(),
            pass_fds=keep,
            user=account and account.uid,
            group=account and account.gid,
            extra_groups=[] if account else None,
            # Runs after the change of user, which would clear the death signal.
            preexec_fn=_set_death_signal(death_signal),  # noqa: PLW1509 the supervisor's other thread only waits for a lock
        )
    except (OSError, subprocess.SubprocessError) as error:
        user = f" as user {account.name}" if account else ""
        raise EmbeddedError(f"cannot run {command[0]}{user}: {error}") from error


def run(command: Sequence[str | Path], account: Account | None, text: str | None = None) -> tuple[int, str]:
    """Run a program to its end, and return its exit code and its output."""
    process = spawn(command, account, stdin=subprocess.DEVNULL if text is None else subprocess.PIPE)
    output, _ = process.communicate(None if text is None else text.encode())
    return process.returncode, output.decode(errors="replace").strip()


def _environment() -> dict[str, str]:
    """Return the environment without libpq's variables, and with the same locale and time zone on every machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _set_death_signal(death_signal: signal.Signals) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork
    parent = os.getpid()

    def set_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return set_signal
