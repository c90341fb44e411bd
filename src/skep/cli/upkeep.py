"""`skep upkeep`: run the background jobs, alone or in the background of `skep serve`."""

import asyncio
import logging
import signal
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from threading import Thread
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.text import Text

from skep.cli.connect import connect_async
from skep.cli.options import (
    DatabaseUrl,
    DataDir,
    DelayedInterval,
    DetectionInterval,
    HeldPushInterval,
    JsonLines,
    LeaseExpiryInterval,
    OutboxInterval,
    PruningInterval,
    RetentionInterval,
    SamplingInterval,
    ScheduleInterval,
)
from skep.cli.retention import queue_retention
from skep.cli.show import Cell, clock, compact, error_console, note, one_line, say, show_json, show_table
from skep.cli.signals import STOP_SIGNALS
from skep.config import Config

if TYPE_CHECKING:
    from skep import AsyncSkep
    from skep.upkeep import Upkeep

GRACE = 5.0  # seconds for a run in progress to end before it is cancelled; its transaction is rolled back then

log = logging.getLogger("skep.upkeep")


def upkeep(
    once: Annotated[bool, typer.Option("--once", help="Run every job once. The exit code is 1 if one fails.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what retention would delete.")] = False,
    as_json: JsonLines = False,
    lease_expiry_interval: LeaseExpiryInterval = None,
    detection_interval: DetectionInterval = None,
    retention_interval: RetentionInterval = None,
    sampling_interval: SamplingInterval = None,
    pruning_interval: PruningInterval = None,
    held_push_interval: HeldPushInterval = None,
    outbox_interval: OutboxInterval = None,
    delayed_interval: DelayedInterval = None,
    schedule_interval: ScheduleInterval = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Run the background jobs of `skep serve` without the server: retention, dead groups, samples."""
    config = Config.load_upkeep(
        database_url=database_url,
        data_dir=data_dir,
        lease_expiry_interval=lease_expiry_interval,
        detection_interval=detection_interval,
        retention_interval=retention_interval,
        sampling_interval=sampling_interval,
        pruning_interval=pruning_interval,
        held_push_interval=held_push_interval,
        outbox_interval=outbox_interval,
        delayed_interval=delayed_interval,
        schedule_interval=schedule_interval,
    )
    if dry_run:
        queue_retention(as_json=as_json, database_url=database_url, data_dir=data_dir)
    elif not once:
        with _logged_by(UpkeepLines(as_json=as_json)):
            asyncio.run(_until_stopped(config))
    elif not asyncio.run(_once(config, as_json=as_json)):
        raise typer.Exit(1)


async def _once(config: Config, *, as_json: bool) -> bool:
    """Run every job once, and return whether all succeeded."""
    from skep.upkeep import JOBS, Upkeep, intervals

    async with connect_async(config, pool_size=len(JOBS)) as mq:
        jobs = Upkeep(mq, JOBS, intervals(config))
        done = await jobs.run_once()
    if as_json:
        show_json([_json_row(jobs, name, text) for name, text in done.items()])
    else:
        show_table(("job", "every s", "took ms", "did"), (_row(jobs, name, text) for name, text in done.items()))
    return jobs.healthy


def _json_row(jobs: "Upkeep", name: str, text: str | None) -> dict[str, object]:
    health = jobs.health[name]
    times = {"every": health.every, "seconds": health.seconds}
    return {"job": name, **times, "did": None if health.error else text, "error": health.error}


def _row(jobs: "Upkeep", name: str, text: str | None) -> tuple[Cell, ...]:
    health = jobs.health[name]
    failed = Text(one_line(f"failed: {health.error}"), "red") if health.error else None
    return name, f"{health.every:g}", health.seconds * 1000, failed or text or "nothing to do"


async def _until_stopped(config: Config) -> None:
    """Run until Ctrl-C or SIGTERM. The first signal lets the runs in progress finish, the second cancels them."""
    from skep.upkeep import JOBS, Upkeep, intervals

    async with connect_async(config, pool_size=len(JOBS)) as mq:
        jobs = Upkeep(mq, JOBS, intervals(config))
        running = asyncio.create_task(jobs.run())
        stops = iter((jobs.stop,))

        def stop() -> None:
            next(stops, running.cancel)()

        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop)
        if error_console().is_terminal:
            note("Upkeep is running. Ctrl-C stops it.")
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()


class UpkeepLines(logging.Handler):
    """Prints a line for each run of a job that did something. Failures go to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.INFO)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        job, text = map(str, cast("tuple[object, object]", record.args))
        failed = record.levelno >= logging.WARNING
        at = datetime.fromtimestamp(record.created, UTC)
        line = f"{clock(at)}  {one_line(record.getMessage())}"
        if self._as_json:
            fields = {"at": at, "job": job, "did": None if failed else text, "error": text if failed else None}
            print(compact(fields), flush=True)
        elif failed:
            error_console().print(line, style="red", markup=False)
        else:
            say(line)


class BackgroundUpkeepLines(UpkeepLines):
    """Ignores a closed output, so that `skep serve` continues without a reader."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)


@contextmanager
def _logged_by(handler: logging.Handler) -> Generator[None]:
    """Send the log of upkeep to this handler only."""
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


@contextmanager
def in_background(config: Config, url: str) -> Generator[None]:
    """Run the jobs in a thread with its own event loop. Failures are logged and do not stop the caller."""
    from skep import AsyncSkep
    from skep.upkeep import JOBS, Upkeep, intervals

    loop = asyncio.new_event_loop()
    mq = AsyncSkep(url, pool_size=len(JOBS))
    jobs = Upkeep(mq, JOBS, intervals(config))
    work = loop.create_task(_run_jobs(mq, jobs))
    thread = Thread(target=_run_loop, args=(loop, work), name="skep-upkeep", daemon=True)
    with _logged_by(BackgroundUpkeepLines(as_json=False)):
        thread.start()
        try:
            yield
        finally:
            for stop in (jobs.stop, work.cancel):
                with suppress(RuntimeError):  # the loop is closed already
                    loop.call_soon_threadsafe(stop)
                thread.join(GRACE)


def _run_loop(loop: asyncio.AbstractEventLoop, work: asyncio.Task[None]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the main thread must receive them
    with closing(loop), suppress(asyncio.CancelledError):
        loop.run_until_complete(work)


async def _run_jobs(mq: "AsyncSkep", jobs: "Upkeep") -> None:
    try:
        await jobs.run()
        await mq.close()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        log.exception("%s failed: %s", "upkeep", what)
