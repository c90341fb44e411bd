"""The shop that `skep demo` runs: what is sold, who works there, and what goes wrong."""

import asyncio
import math
import random
from collections import Counter
from time import monotonic
from typing import Any
from uuid import uuid4

from skep import AsyncSkep, Message, NewMessage
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.consumer import AsyncConsumer

ORDERS, PAYMENTS, EMAILS = "demo-orders", "demo-payments", "demo-emails"
SHIPMENTS, REMINDERS = "demo-shipments", "demo-reminders"
BILLING, BANK, MAILER, LATE = "demo-billing", "demo-bank", "demo-mailer", "demo-analytics"
WAREHOUSE, REMINDER = "demo-warehouse", "demo-reminder"
GROUPS = (BILLING, BANK, MAILER, WAREHOUSE, REMINDER, LATE)

# Nothing of it fills the disk, however long it runs.
KEEP = {"namespace": "demo", "completed_retention_seconds": 900, "retention_seconds": 3600}
QUEUES: dict[str, dict[str, Any]] = {
    ORDERS: KEEP,
    PAYMENTS: {**KEEP, "retry_limit": 1, "retry_delay": 0.5},
    EMAILS: KEEP,
    SHIPMENTS: KEEP,
    REMINDERS: {**KEEP, "delayed_processing": 15},
}

CUSTOMERS = 40
HOT = "customer-7"
HOT_SHARE = 0.4
WAVE = 90.0  # seconds from one rush to the next
TICK = 0.1
SLOWNESS = 1.5  # the mailer takes so much longer for a message than the next one takes to come
REMIND_EVERY = 5
TRACE_EVERY = 10
TROUBLE_EVERY = 40
TROUBLES: dict[int, Exception] = {
    7: PermissionError("the card was declined"),
    17: TimeoutError("the bank did not answer within 30 s"),
    18: TimeoutError("the bank did not answer within 30 s"),
    27: ValueError("currency XAU is not supported"),
}
MOST_LETTERS = 100


class Shop:
    """Orders come in; billing makes payments, e-mails, shipments and reminders of each, in one transaction with it."""

    def __init__(self, mq: AsyncSkep, rate: float) -> None:
        self._mq = mq
        self._rate = rate
        self._dice = random.Random()  # noqa: S311
        self._run = uuid4().hex[:6]
        self.done: Counter[str] = Counter()
        self._number = 0
        self._warehouse = mq.consumer(SHIPMENTS, group=WAREHOUSE, batch=50, per="batch")(self._ship)

    async def open(self) -> None:
        for queue, options in QUEUES.items():
            await self._mq.queue(queue).configure(**options)

    def staff(self) -> list[AsyncConsumer]:
        """Return who works from the first minute."""
        hire = self._mq.consumer
        return [
            hire(ORDERS, group=BILLING, batch=50, per="batch", concurrency=2)(self._bill),
            hire(PAYMENTS, group=BANK, batch=1, concurrency=8)(self._pay),
            hire(EMAILS, group=MAILER, batch=1)(self._mail),
            self._warehouse,
            hire(REMINDERS, group=REMINDER, batch=50, per="batch")(self._remind),
        ]

    def late_comer(self) -> AsyncConsumer:
        hire = self._mq.consumer(ORDERS, group=LATE, batch=100, per="batch", subscription_mode="all")
        return hire(self._analyse)

    async def sell(self) -> None:
        """Push orders, more of them in the rush hours."""
        due, before = 0.0, monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = monotonic()
            due += self._rate * (1 + 0.6 * math.sin(2 * math.pi * now / WAVE)) * (now - before)
            orders, before = int(due), now
            due -= orders
            await self._mq.queue(ORDERS).push_many([self._order() for _ in range(orders)])
            self.done[ORDERS] += orders

    def _order(self) -> NewMessage:
        self._number += 1
        hot = self._dice.random() < HOT_SHARE
        customer = HOT if hot else f"customer-{self._dice.randrange(CUSTOMERS)}"
        payload = {
            "order": self._number,
            "customer": customer,
            "total": round(self._dice.lognormvariate(3, 1), 2),
            "items": self._dice.randint(1, 5),
        }
        source = {"source": self._dice.choice(("web", "app", "phone"))}
        return NewMessage(payload, customer, f"order-{self._run}-{self._number}", source, uuid4())

    async def _bill(self, batch: AsyncBatch) -> None:
        async with self._mq.transaction() as all_or_nothing:
            for order in batch:
                for queue in (PAYMENTS, EMAILS, SHIPMENTS, REMINDERS):
                    if queue != REMINDERS or order.payload["order"] % REMIND_EVERY == 0:
                        partition, trace = order.partition, order.trace_id
                        all_or_nothing.push(queue, order.payload, partition=partition, trace_id=trace)
            all_or_nothing.ack(batch)
        self.done[BILLING] += len(batch)
        for order in batch:
            if order.payload["order"] % TRACE_EVERY == 0:
                await self._note(order, BILLING, "billed")

    async def _note(self, message: Message, group: str, what: str) -> None:
        names = ["demo-checkout", f"demo-{message.payload['customer']}"]
        await self._mq.trace(message, {"text": what, "order": message.payload["order"]}, group=group, names=names)

    async def _pay(self, payment: Message) -> None:
        trouble = TROUBLES.get(payment.payload["order"] % TROUBLE_EVERY)
        if trouble is not None and "skep-redriven" not in (payment.headers or {}):
            self.done["failed"] += 1
            raise trouble
        self.done[BANK] += 1
        if payment.payload["order"] % TRACE_EVERY == 0:
            await self._note(payment, BANK, "paid")

    async def _mail(self, _: Message) -> None:
        await asyncio.sleep(SLOWNESS / self._rate)
        self.done[MAILER] += 1

    async def _ship(self, batch: AsyncBatch) -> None:
        self.done[WAREHOUSE] += len(batch)

    async def _remind(self, batch: AsyncBatch) -> None:
        self.done[REMINDER] += len(batch)

    async def _analyse(self, batch: AsyncBatch) -> None:
        self.done[LATE] += len(batch)

    async def pause(self) -> None:
        """Let the warehouse finish what it holds, and pause it."""
        await self._warehouse.stop()
        await self._mq.pause(WAREHOUSE, SHIPMENTS)

    async def support(self) -> int:
        """Drive dead letters again once there are many: by then the trouble is mended. Returns how many."""
        letters = sum(each.letters for each in await self._mq.count_dead_letters(PAYMENTS))
        if letters < MOST_LETTERS:
            return 0
        driven = await self._mq.redrive(PAYMENTS, BANK, limit=MOST_LETTERS // 2, done_by="demo-support")
        return len(driven)

    async def clean(self) -> int:
        """Remove everything the shop has ever made; returns how many queues that were."""
        for group in GROUPS:
            await self._mq.delete_group(group)
        for queue in QUEUES:
            while await self._mq.purge_dead_letters(queue, done_by="demo-support"):
                pass
        return sum([await self._mq.delete_queue(queue) for queue in QUEUES])
