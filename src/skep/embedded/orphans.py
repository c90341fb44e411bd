"""Backends that outlive their postmaster."""

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


def end_orphans(lock: Path, postmaster: int) -> None:
    """Kill the processes of PostgreSQL that hold the lock of the server, unless their postmaster is among them.

    A backend sees that its postmaster has died only when it waits for something. One that computes goes on, and no
    new server may start beside it. To kill it loses nothing: the next server recovers as after any crash.
    """
    holders = list(_holders(lock))
    if postmaster in holders:  # it is still shutting down
        return
    for pid in holders:
        logger.warning("killing process %s, which has outlived its postmaster", pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _holders(lock: Path) -> Iterator[int]:
    """Find them by the file they have open: a process id alone may belong to someone else by now."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to look at
            if (process / "exe").readlink().name.startswith("postgres") and _has_open(process, lock):
                yield int(process.name)


def _has_open(process: Path, file: Path) -> bool:
    return any(descriptor.exists() and descriptor.samefile(file) for descriptor in (process / "fd").iterdir())
