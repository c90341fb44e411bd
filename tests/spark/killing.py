"""Jobs that are killed at a given step, by SIGKILL. A process forks one for each request.

The work of Spark's tasks is done in the process of the job, so that a step is always the same.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from skep.pipelines import QueueScope, archive, compact, tasks
from skep.spark.database import SparkDatabase
from skep.spark.parquet import ArchiveStore

ROOT = Path(__file__).parents[2]
NEVER = -1


class Killer:
    """The process that forks jobs."""

    def __init__(self, url: str, location: Path) -> None:
        command = [sys.executable, "-m", "tests.spark.killing", url, str(location)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)

    def runs(self, job: str, step: int = NEVER, *, size: int = 20) -> bool:
        """Run a job that is killed at a step. Return true if it ended before that step."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{job} {step} {size}\n")
        result = self._process.stdout.readline().strip()
        assert result in ("ended", "killed"), result
        return result == "ended"


def main(url: str, location: str) -> None:
    jobs: dict[str, Callable[[Any, int], object]] = {
        "archive": lambda spark, size: archive(spark, url, location, QueueScope(("q",)), file_messages=size),
        "compact": lambda spark, size: compact(spark, url, location, file_messages=size, grace=timedelta()),
    }
    for line in sys.stdin:
        job, step, size = line.split()
        print(_fork(partial(jobs[job], None, int(size)), int(step)), flush=True)


def _fork(job: Callable[[], object], step: int) -> str:
    child = os.fork()
    if child == 0:
        try:
            Steps(step).count()
            job()
            os._exit(0)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}"
    return "ended" if status == 0 else "failed"


class Steps:
    """Counts steps: before and after each access to the database or to files, and half-way through a write."""

    def __init__(self, left: int) -> None:
        self.left = left

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def count(self) -> None:
        for owner, name in (
            (SparkDatabase, "rows"),
            (ArchiveStore, "delete"),
            (ArchiveStore, "batches"),
            (ArchiveStore, "write"),
        ):
            setattr(owner, name, self._counted(getattr(owner, name)))
        setattr(ArchiveStore, "write", self._half_written(ArchiveStore.write))  # noqa: B010
        tasks.run = self._here  # type: ignore[assignment]
        tasks.cores = lambda _: 2  # type: ignore[assignment]

    def _counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def do(*arguments: object, **named: object) -> object:
            self.step()
            result = real(*arguments, **named)
            self.step()
            return result

        return do

    def _half_written(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(store: ArchiveStore, path: str, batches: object) -> int:
            if self.left == 0:
                target = Path(store.location, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(b"PAR1 incomplete")
            self.step()
            return real(store, path, batches)

        return write

    @staticmethod
    def _here(spark: object, work: Callable[[Any], Any], items: Sequence[Any], report: object) -> list[Any]:
        return [work(item) for item in items]


if __name__ == "__main__":
    main(*sys.argv[1:])
