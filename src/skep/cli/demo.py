"""`skep demo`: run a sample workload for `skep top` and the dashboard."""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from skep.cli.connect import connect_async
from skep.cli.options import DatabaseUrl, DataDir
from skep.cli.show import compact, counted, note, one_line, say, show_json
from skep.cli.signals import run_until_stopped
from skep.config import Config

if TYPE_CHECKING:
    from skep import AsyncSkep
    from skep.cli.demo_workload import DemoWorkload

CONNECTIONS = 20
STEP = 20.0  # seconds between two events of the demo
STEPS = 3
REPORT_EVERY = 10.0


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Stop after this number of seconds. Default: at Ctrl-C.", show_default=False),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Orders per second.")] = 20,
    clean: Annotated[bool, typer.Option("--clean", help="Delete the queues and groups of the demo, and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event and line.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Run a sample workload with slow, failing, late and paused groups."""
    config = Config.load_client(database_url, data_dir)
    if clean:
        asyncio.run(_clean(config, as_json=as_json))
        return
    with _without_tracebacks():
        run_until_stopped(_run(config, EventPrinter(as_json=as_json), seconds, rate))
    if not as_json:
        say("The queues stay: `skep top` and the dashboard show them, `skep demo --clean` deletes them.")


class EventPrinter:
    """Prints events with the time since the start."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._start = monotonic()

    def print(self, text: str, **numbers: int) -> None:
        second = monotonic() - self._start
        if self._as_json:
            print(compact({"second": round(second, 1), "text": text, **numbers}), flush=True)
        else:
            details = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items())
            say(one_line(f"{int(second) // 60:02}:{int(second) % 60:02}  {text}{details}"))


async def _clean(config: Config, *, as_json: bool) -> None:
    from skep.cli.demo_workload import DemoWorkload

    async with connect_async(config) as mq:
        deleted = await DemoWorkload(mq, 1).delete_all()
    if as_json:
        show_json({"removed": deleted})
    else:
        say(f"{counted(deleted, 'queue')} deleted")


async def _run(config: Config, events: EventPrinter, seconds: float | None, rate: float) -> None:
    """Run the workload until it is stopped or the time is up. The events of a short run come earlier."""
    from skep.cli.demo_workload import DemoWorkload
    from skep.upkeep import JOBS, Upkeep

    step = STEP if seconds is None else min(STEP, seconds / STEPS)
    async with connect_async(config, pool_size=CONNECTIONS) as mq:
        workload = DemoWorkload(mq, rate)
        await workload.create_queues()
        _introduce(events)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
                for consumer in workload.consumers():
                    tasks.create_task(consumer.run())
                tasks.create_task(Upkeep(mq, JOBS).run())
                tasks.create_task(workload.push_orders())
                tasks.create_task(_report(mq, workload, events, step))
                await _run_events(workload, events, step, tasks)


def _introduce(events: EventPrinter) -> None:
    from skep.cli import demo_workload as names

    events.print(f"orders are pushed to {names.ORDERS}, many of them by {names.HOT_CUSTOMER}")
    events.print(f"{names.BILLING} pushes payments, e-mails, shipments and reminders, in one transaction per batch")
    events.print(f"{names.BANK} fails some payments: they become dead letters of {names.PAYMENTS}")
    events.print(f"{names.MAILER} is too slow for {names.EMAILS}: its lag grows")
    delay = names.QUEUES[names.REMINDERS]["delayed_processing"]
    events.print(f"{names.REMINDERS} delivers after {delay} s")


async def _run_events(workload: "DemoWorkload", events: EventPrinter, step: float, tasks: asyncio.TaskGroup) -> None:
    from skep.cli.demo_workload import ANALYTICS, ORDERS, SHIPMENTS, WAREHOUSE

    await asyncio.sleep(step)
    tasks.create_task(workload.late_consumer().run())
    events.print(f"{ANALYTICS} joins late and reads {ORDERS} from the beginning")
    await asyncio.sleep(step)
    await workload.pause_warehouse()
    events.print(f"{WAREHOUSE} is paused: its backlog grows in {SHIPMENTS}")


async def _report(mq: "AsyncSkep", workload: "DemoWorkload", events: EventPrinter, step: float) -> None:
    from skep.cli.demo_workload import BANK, BILLING, EMAILS, MAILER, ORDERS, PAYMENTS

    while True:
        await asyncio.sleep(min(step, REPORT_EVERY))
        if redriven := await workload.redrive_payments():
            events.print(f"support redrives {counted(redriven, 'dead letter')} of {PAYMENTS}")
        lag = sum(group.lag for group in await mq.groups(queue=EMAILS))
        numbers = {"ordered": ORDERS, "billed": BILLING, "paid": BANK, "failed": "failed", "mailed": MAILER}
        events.print("", **{name: workload.done[key] for name, key in numbers.items()}, pending_e_mails=lag)


@contextmanager
def _without_tracebacks() -> Generator[None]:
    """Hide the failures of handlers, which belong to the demo. Other warnings are shown."""
    log = logging.getLogger("skep")
    handler = _WarningHandler(logging.WARNING)
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


class _WarningHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is None:
            note(one_line(record.getMessage()))
