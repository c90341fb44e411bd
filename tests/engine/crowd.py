"""Many threads at once, and waiting for what they bring about."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 30.0  # seconds before a wait is given up as hopeless


def at_once(*jobs: Callable[[], T]) -> list[T]:
    """Run each job in a thread of its own; return what they return, or raise what one of them raised."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        return [future.result() for future in [threads.submit(job) for job in jobs]]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:.0f} s in vain: {what}")
        time.sleep(0.002)
