"""Run many threads at once, and wait for conditions."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 30.0  # seconds after which a wait fails


def at_once(*jobs: Callable[[], T]) -> list[T]:
    """Run each job in a thread of its own; return their results, or raise the error of one of them."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        return [future.result() for future in [threads.submit(job) for job in jobs]]


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE:.0f} s in vain: {what}")
        time.sleep(0.002)
