"""File locks. The kernel drops them when the last process that has the file open ends."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from skep.errors import EmbeddedError

POLL_SECONDS = 0.01


def open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedError(f"cannot open {path}: {error.strerror}") from error


def try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, mode: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not try_lock(descriptor, mode):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def could_lock(path: Path, mode: int) -> bool:
    """Return whether the lock is available, without keeping it."""
    descriptor = open_lock(path)
    try:
        return try_lock(descriptor, mode)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(path: Path, seconds: float) -> Generator[None]:
    descriptor = open_lock(path)
    try:
        if not lock_within(descriptor, fcntl.LOCK_EX, seconds):
            raise EmbeddedError(f"another process has held {path} for {seconds:.0f} seconds")
        yield
    finally:
        # Unlocked before it is closed: a child forked meanwhile has the file open, too, and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
