"""Backends that are still running after their postmaster has died."""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


def end_orphans(lock: Path, postmaster: int) -> None:
    """Kill the processes of PostgreSQL that hold the server lock, unless their postmaster is among them.

    A backend notices the death of its postmaster only when it waits. A busy one continues, and prevents the start of
    a new server. Killing it loses nothing: the next server recovers as after any crash.
    """
    holders = list(_holders(lock))
    if postmaster in holders:  # it is still shutting down
        return
    for pid in holders:
        logger.warning("killing process %s, whose postmaster has died", pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _holders(lock: Path) -> Iterator[int]:
    """Find the processes by their open file, because a process id may have been reused."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if (process / "exe").readlink().name.startswith("postgres") and _has_open(process, lock):
                yield int(process.name)


def _has_open(process: Path, file: Path) -> bool:
    return any(descriptor.exists() and descriptor.samefile(file) for descriptor in (process / "fd").iterdir())
