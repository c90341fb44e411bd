"""`skep demo`: a shop that makes a story for `skep top` and the dashboard."""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from time import monotonic

from skep import AsyncSkep
from skep.cli.connect import client
from skep.cli.report import errors
from skep.cli.shop import (
    BANK,
    BILLING,
    EMAILS,
    HOT,
    LATE,
    MAILER,
    ORDERS,
    PAYMENTS,
    QUEUES,
    REMINDERS,
    SHIPMENTS,
    WAREHOUSE,
    Shop,
)
from skep.cli.show import compact, counted, one_line, say, show_json
from skep.cli.stopping import run_until_stopped
from skep.config import Config
from skep.upkeep import JOBS, Upkeep

CONNECTIONS = 20
CHAPTER = 20.0  # seconds from one thing that happens to the next
CHAPTERS = 3
REPORT_EVERY = 10.0
STORY = (
    f"orders come in at {ORDERS}, many of them from {HOT}",
    f"{BILLING} makes payments, e-mails, shipments and reminders of them, in one transaction with each",
    f"{BANK} fails some payments for good: they become dead letters of {PAYMENTS}",
    f"{MAILER} is too slow for {EMAILS}: its lag grows",
    f"{REMINDERS} delivers after {QUEUES[REMINDERS]['delayed_processing']} s",
)


class Teller:
    """Says what happens, with the time since the start."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._start = monotonic()

    def tell(self, text: str, **numbers: int) -> None:
        second = monotonic() - self._start
        if self._as_json:
            print(compact({"second": round(second, 1), "text": text, **numbers}), flush=True)
        else:
            details = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items())
            say(one_line(f"{int(second) // 60:02}:{int(second) % 60:02}  {text}{details}"))


def run(config: Config, *, seconds: float | None, rate: float, clean: bool, as_json: bool) -> None:
    if clean:
        asyncio.run(_clean(config, as_json=as_json))
        return
    teller = Teller(as_json=as_json)
    with _only_what_is_new():
        run_until_stopped(_play(config, teller, seconds, rate))
    if not as_json:
        say("The queues stay: `skep top` and the dashboard show them, `skep demo --clean` removes them.")


async def _clean(config: Config, *, as_json: bool) -> None:
    async with client(config) as mq:
        removed = await Shop(mq, 1).clean()
    if as_json:
        show_json({"removed": removed})
    else:
        say(f"{counted(removed, 'queue')} removed")


async def _play(config: Config, teller: Teller, seconds: float | None, rate: float) -> None:
    """Run the shop until it is stopped, or time is up; a short day has its chapters earlier."""
    pace = CHAPTER if seconds is None else min(CHAPTER, seconds / CHAPTERS)
    async with client(config, pool_size=CONNECTIONS) as mq:
        shop = Shop(mq, rate)
        await shop.open()
        for line in STORY:
            teller.tell(line)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as work:
                for consumer in shop.staff():
                    work.create_task(consumer.run())
                work.create_task(Upkeep(mq, JOBS).run())
                work.create_task(shop.sell())
                work.create_task(_report(mq, shop, teller, pace))
                await _unfold(shop, teller, pace, work)


async def _unfold(shop: Shop, teller: Teller, pace: float, work: asyncio.TaskGroup) -> None:
    await asyncio.sleep(pace)
    work.create_task(shop.late_comer().run())
    teller.tell(f"{LATE} joins late, and reads {ORDERS} from the beginning")
    await asyncio.sleep(pace)
    await shop.pause()
    teller.tell(f"{WAREHOUSE} is paused: what is owed to it waits in {SHIPMENTS}")


async def _report(mq: AsyncSkep, shop: Shop, teller: Teller, pace: float) -> None:
    while True:
        await asyncio.sleep(min(pace, REPORT_EVERY))
        if driven := await shop.support():
            teller.tell(f"somebody drives {counted(driven, 'dead letter')} of {PAYMENTS} again")
        behind = sum(group.lag for group in await mq.groups(queue=EMAILS))
        numbers = {"ordered": ORDERS, "billed": BILLING, "paid": BANK, "failed": "failed", "mailed": MAILER}
        teller.tell("", **{name: shop.done[key] for name, key in numbers.items()}, waiting_for_the_mailer=behind)


@contextmanager
def _only_what_is_new() -> Generator[None]:
    """Failures of handlers belong to the story; that the database is away does not."""
    log = logging.getLogger("skep")
    told = _Told(logging.WARNING)
    before, log.propagate = log.propagate, False
    log.addHandler(told)
    try:
        yield
    finally:
        log.removeHandler(told)
        log.propagate = before


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is None:
            errors.print(one_line(record.getMessage()), style="dim", markup=False)
