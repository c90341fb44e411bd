"""Leases of a consumer: extended while handlers work, dropped when they are lost, and independent of each other."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from skep import AsyncSkep, Message, NewMessage
from skep.client.aio.batch import AsyncBatch
from tests.client.faces import Face
from tests.client.verbs import nothing_left, opened, running, until

GROUP: Any = {"group": "g"}


async def test_a_lease_is_extended_while_its_handler_works(mq: AsyncSkep, db: psycopg.Connection):
    """The handler works much longer than the lease; the message is delivered once."""
    finish = asyncio.Event()
    attempts = []

    @mq.consumer("orders", lease_time=0.3, **GROUP)
    async def handle(message: Message) -> None:
        attempts.append(message.attempt)
        await opened(finish)

    await mq.queue("orders").push("a")
    async with running(handle):
        await until(lambda: attempts, "the handler to begin")
        deadline = db.execute("SELECT max(expires_at) FROM skep.leases").fetchall()[0][0]
        over = "SELECT clock_timestamp() > %s + interval '1 s'"
        await until(lambda: db.execute(over, [deadline]).fetchall()[0][0], "three leases of time")
        assert not await mq.queue("orders").pop(**GROUP)
        finish.set()
        await nothing_left(mq)
    assert attempts == [1]


async def test_a_lost_lease_ends_the_batch(mq: AsyncSkep):
    """After a seek the rest of the batch is not handled; messages are delivered again from the new position."""
    seen = []
    again = asyncio.Event()

    @mq.consumer("orders", lease_time=0.3, batch=5, **GROUP)
    async def handle(message: Message) -> None:
        seen.append((message.offset, message.attempt))
        if len(seen) == 1:
            lost = message.lease
            await mq.queue("orders").seek("g", 2)
            await until(lambda: held_no_more(mq, lost), "the loss to be noticed")
        if message.offset == 3:
            again.set()

    await mq.queue("orders").push_many("abcd")
    async with running(handle):
        await again.wait()
        await nothing_left(mq)
    assert seen == [(0, 1), (2, 1), (3, 1)]


def held_no_more(mq: Any, lease: Any) -> bool:
    """Return whether the driver of the only consumer knows that this lease is lost."""
    (consumer,) = getattr(mq, "plain", mq)._consumers
    return consumer._driver._batches[lease].lost


async def test_an_ack_in_an_open_transaction_delays_no_other_lease(
    mq: AsyncSkep, face: Face, db: psycopg.Connection, module_database_url: str
):
    """The handler has acknowledged in a transaction that is still open and locks the partition of its batch."""
    attempts: dict[str, list[int]] = {"transaction": [], "plain": []}
    finish = asyncio.Event()

    @mq.consumer("orders", per="batch", batch=1, concurrency=2, lease_time=0.6, **GROUP)
    async def handle(batch: AsyncBatch) -> None:
        attempts[batch[0].payload].append(batch[0].attempt)
        if batch[0].payload == "transaction":
            async with transaction(face, module_database_url) as connection:
                await batch.ack(connection=connection)
                await opened(finish)
        else:
            await opened(finish)

    await mq.queue("orders").push_many([NewMessage(name, name) for name in attempts])
    async with running(handle):
        await until(lambda: all(attempts.values()), "both handlers to begin")
        began = time.monotonic()
        await until(lambda: time.monotonic() > began + 1.5 or len(attempts["plain"]) > 1, "two leases of time")
        finish.set()
        await nothing_left(mq)
    assert attempts == {"transaction": [1], "plain": [1]}


@asynccontextmanager
async def transaction(face: Face, url: str) -> AsyncGenerator[Any]:
    """A transaction of the handler, on a connection that the client accepts."""
    if face == "async":
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection
    else:
        with psycopg.connect(url) as connection:
            yield connection
