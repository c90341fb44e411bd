"""The workload of `skep demo`: the orders of an online shop, with slow, failing, late and paused groups."""

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
BILLING, BANK, MAILER, ANALYTICS = "demo-billing", "demo-bank", "demo-mailer", "demo-analytics"
WAREHOUSE, REMINDER = "demo-warehouse", "demo-reminder"
GROUPS = (BILLING, BANK, MAILER, WAREHOUSE, REMINDER, ANALYTICS)

# Retention keeps the demo from filling the disk, however long it runs.
RETENTION = {"namespace": "demo", "completed_retention_seconds": 900, "retention_seconds": 3600}
QUEUES: dict[str, dict[str, Any]] = {
    ORDERS: RETENTION,
    PAYMENTS: {**RETENTION, "retry_limit": 1, "retry_delay": 0.5},
    EMAILS: RETENTION,
    SHIPMENTS: RETENTION,
    REMINDERS: {**RETENTION, "delayed_processing": 15},
}

CUSTOMERS = 40
HOT_CUSTOMER = "customer-7"
HOT_SHARE = 0.4
PEAK_INTERVAL = 90.0  # seconds between two peaks of the order rate
PUSH_INTERVAL = 0.1
MAIL_SLOWNESS = 1.5  # time to mail a message, relative to the time between two orders
REMIND_EVERY = 5
TRACE_EVERY = 10
FAILURE_CYCLE = 40
FAILURES: dict[int, Exception] = {
    7: PermissionError("the card was declined"),
    17: TimeoutError("the bank did not answer within 30 s"),
    18: TimeoutError("the bank did not answer within 30 s"),
    27: ValueError("currency XAU is not supported"),
}
MAX_DEAD_LETTERS = 100


class DemoWorkload:
    """Pushes orders. Billing turns each into a payment, an e-mail and a shipment in one transaction with its ack."""

    def __init__(self, mq: AsyncSkep, rate: float) -> None:
        self._mq = mq
        self._rate = rate
        self._random = random.Random()  # noqa: S311
        self._run = uuid4().hex[:6]
        self.done: Counter[str] = Counter()
        self._number = 0
        self._warehouse = mq.consumer(SHIPMENTS, group=WAREHOUSE, batch=50, per="batch")(self._ship)

    async def create_queues(self) -> None:
        for queue, options in QUEUES.items():
            await self._mq.queue(queue).configure(**options)

    def consumers(self) -> list[AsyncConsumer]:
        """Return the consumers that run from the start."""
        consumer = self._mq.consumer
        return [
            consumer(ORDERS, group=BILLING, batch=50, per="batch", concurrency=2)(self._bill),
            consumer(PAYMENTS, group=BANK, batch=1, concurrency=8)(self._pay),
            consumer(EMAILS, group=MAILER, batch=1)(self._mail),
            self._warehouse,
            consumer(REMINDERS, group=REMINDER, batch=50, per="batch")(self._remind),
        ]

    def late_consumer(self) -> AsyncConsumer:
        """Return the consumer of the group that joins late."""
        consumer = self._mq.consumer(ORDERS, group=ANALYTICS, batch=100, per="batch", subscription_mode="all")
        return consumer(self._analyse)

    async def push_orders(self) -> None:
        """Push orders for ever, at a rate that rises and falls."""
        due, before = 0.0, monotonic()
        while True:
            await asyncio.sleep(PUSH_INTERVAL)
            now = monotonic()
            due += self._rate * (1 + 0.6 * math.sin(2 * math.pi * now / PEAK_INTERVAL)) * (now - before)
            orders, before = int(due), now
            due -= orders
            await self._mq.queue(ORDERS).push_many([self._order() for _ in range(orders)])
            self.done[ORDERS] += orders

    def _order(self) -> NewMessage:
        self._number += 1
        hot = self._random.random() < HOT_SHARE
        customer = HOT_CUSTOMER if hot else f"customer-{self._random.randrange(CUSTOMERS)}"
        payload = {
            "order": self._number,
            "customer": customer,
            "total": round(self._random.lognormvariate(3, 1), 2),
            "items": self._random.randint(1, 5),
        }
        source = {"source": self._random.choice(("web", "app", "phone"))}
        return NewMessage(payload, customer, f"order-{self._run}-{self._number}", source, uuid4())

    async def _bill(self, batch: AsyncBatch) -> None:
        async with self._mq.transaction() as transaction:
            for order in batch:
                for queue in (PAYMENTS, EMAILS, SHIPMENTS, REMINDERS):
                    if queue != REMINDERS or order.payload["order"] % REMIND_EVERY == 0:
                        partition, trace = order.partition, order.trace_id
                        transaction.push(queue, order.payload, partition=partition, trace_id=trace)
            transaction.ack(batch)
        self.done[BILLING] += len(batch)
        for order in batch:
            if order.payload["order"] % TRACE_EVERY == 0:
                await self._trace(order, BILLING, "billed")

    async def _trace(self, message: Message, group: str, text: str) -> None:
        names = ["demo-checkout", f"demo-{message.payload['customer']}"]
        await self._mq.trace(message, {"text": text, "order": message.payload["order"]}, group=group, names=names)

    async def _pay(self, payment: Message) -> None:
        failure = FAILURES.get(payment.payload["order"] % FAILURE_CYCLE)
        if failure is not None and "skep-redriven" not in (payment.headers or {}):
            self.done["failed"] += 1
            raise failure
        self.done[BANK] += 1
        if payment.payload["order"] % TRACE_EVERY == 0:
            await self._trace(payment, BANK, "paid")

    async def _mail(self, _: Message) -> None:
        await asyncio.sleep(MAIL_SLOWNESS / self._rate)
        self.done[MAILER] += 1

    async def _ship(self, batch: AsyncBatch) -> None:
        self.done[WAREHOUSE] += len(batch)

    async def _remind(self, batch: AsyncBatch) -> None:
        self.done[REMINDER] += len(batch)

    async def _analyse(self, batch: AsyncBatch) -> None:
        self.done[ANALYTICS] += len(batch)

    async def pause_warehouse(self) -> None:
        """Pause the warehouse after it has finished its leases."""
        await self._warehouse.stop()
        await self._mq.pause(WAREHOUSE, SHIPMENTS)

    async def redrive_payments(self) -> int:
        """Redrive half of the dead letters once there are many, and return their number. They succeed then."""
        letters = sum(each.letters for each in await self._mq.count_dead_letters(PAYMENTS))
        if letters < MAX_DEAD_LETTERS:
            return 0
        redriven = await self._mq.redrive(PAYMENTS, BANK, limit=MAX_DEAD_LETTERS // 2, done_by="demo-support")
        return len(redriven)

    async def delete_all(self) -> int:
        """Delete all queues, groups and dead letters of the demo, and return the number of queues."""
        for group in GROUPS:
            await self._mq.delete_group(group)
        for queue in QUEUES:
            while await self._mq.purge_dead_letters(queue, done_by="demo-support"):
                pass
        return sum([await self._mq.delete_queue(queue) for queue in QUEUES])
