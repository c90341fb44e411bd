"""`skep upkeep`: the background duties, alone or beside `skep serve`."""

import asyncio
import logging
import signal
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from threading import Thread
from typing import cast

from rich.text import Text

from skep import AsyncSkep
from skep.cli import retention
from skep.cli.connect import client
from skep.cli.report import errors
from skep.cli.show import Cell, compact, one_line, say, show_json, show_table
from skep.cli.stopping import STOPS
from skep.config import Config
from skep.upkeep import JOBS, Upkeep, intervals

GRACE = 5.0  # seconds that a run under way may take to end, before it is broken off: nothing is half done then

log = logging.getLogger("skep.upkeep")


def run(config: Config, *, once: bool, dry_run: bool, as_json: bool) -> bool:
    """Return whether all went well."""
    if dry_run:
        retention.show(config, None, limit=None, as_json=as_json)
        return True
    if once:
        return asyncio.run(_once(config, as_json=as_json))
    with told(Lines(as_json=as_json)):
        asyncio.run(_until_stopped(config))
    return True


async def _once(config: Config, *, as_json: bool) -> bool:
    async with client(config, pool_size=len(JOBS)) as mq:
        upkeep = Upkeep(mq, JOBS, intervals(config))
        done = await upkeep.run_once()
    if as_json:
        show_json([_plain_row(upkeep, name, text) for name, text in done.items()])
    else:
        show_table(("job", "every s", "took ms", "did"), (_row(upkeep, name, text) for name, text in done.items()))
    return upkeep.healthy


def _plain_row(upkeep: Upkeep, name: str, text: str | None) -> dict[str, object]:
    health = upkeep.health[name]
    times = {"every": health.every, "seconds": health.seconds}
    return {"job": name, **times, "did": None if health.error else text, "error": health.error}


def _row(upkeep: Upkeep, name: str, text: str | None) -> tuple[Cell, ...]:
    health = upkeep.health[name]
    failed = Text(one_line(f"failed: {health.error}"), "red") if health.error else None
    return name, f"{health.every:g}", health.seconds * 1000, failed or text or "nothing to do"


async def _until_stopped(config: Config) -> None:
    """Ctrl-C or SIGTERM end it once the runs under way have ended; the second time at once."""
    async with client(config, pool_size=len(JOBS)) as mq:
        upkeep = Upkeep(mq, JOBS, intervals(config))
        running = asyncio.create_task(upkeep.run())
        stops = iter((upkeep.stop,))

        def stop() -> None:
            next(stops, running.cancel)()

        for number in STOPS:
            asyncio.get_running_loop().add_signal_handler(number, stop)
        if errors.is_terminal:
            errors.print("Upkeep runs. Ctrl-C stops it.", style="dim")
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()


class Lines(logging.Handler):
    """Prints what duties did, a line for each run; what failed goes to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.INFO)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        job, text = map(str, cast("tuple[object, object]", record.args))
        failed = record.levelno >= logging.WARNING
        if self._as_json:
            at = datetime.fromtimestamp(record.created, UTC)
            line = {"at": at, "job": job, "did": None if failed else text, "error": text if failed else None}
            print(compact(line), flush=True)
        elif failed:
            errors.print(f"{_clock(record)}  {one_line(record.getMessage())}", style="red", markup=False)
        else:
            say(f"{_clock(record)}  {one_line(record.getMessage())}")


class HarmlessLines(Lines):
    """For work beside the main thing, which goes on when nobody reads the output."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)


def _clock(record: logging.LogRecord) -> str:
    return f"{datetime.fromtimestamp(record.created, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


@contextmanager
def told(handler: logging.Handler) -> Generator[None]:
    """Let this handler, and no other, have what duties say."""
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
    """Run the duties in a thread with an event loop of its own; what happens to them is told, and disturbs nobody."""
    loop = asyncio.new_event_loop()
    mq = AsyncSkep(url, pool_size=len(JOBS))
    upkeep = Upkeep(mq, JOBS, intervals(config))
    work = loop.create_task(_work(mq, upkeep))
    thread = Thread(target=_run_loop, args=(loop, work), name="skep-upkeep", daemon=True)
    with told(HarmlessLines(as_json=False)):
        thread.start()
        try:
            yield
        finally:
            for stop in (upkeep.stop, work.cancel):
                with suppress(RuntimeError):  # it has ended already
                    loop.call_soon_threadsafe(stop)
                thread.join(GRACE)


def _run_loop(loop: asyncio.AbstractEventLoop, work: asyncio.Task[None]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are for the main thread, which sleeps
    with closing(loop), suppress(asyncio.CancelledError):
        loop.run_until_complete(work)


async def _work(mq: AsyncSkep, upkeep: Upkeep) -> None:
    try:
        await upkeep.run()
        await mq.close()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        log.exception("%s failed: %s", "upkeep", what)
