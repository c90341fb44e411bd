"""Clients for tests of faults, in threads or in processes that are killed or stopped.

python -m tests.faults.worker FACE JOB URL ...    run a job; it prints its progress

ledger QUEUE GROUP          consume for ever; write a batch to the ledger and ack it in one transaction
some QUEUE GROUP COUNT      pop, ack COUNT messages one by one, then pause
hold QUEUE GROUP            pop; after a line of input send every kind of ack, and print the results
handle QUEUE GROUP          run a handler that returns after a line of input
produce QUEUE PARTITION     push through a buffer for ever; print the number of confirmed messages
"""

import itertools
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

import psycopg

from skep import AsyncSkep, Message, Skep, SkepError
from tests.client.both import each, either, play, settle

Face = Literal["sync", "async"]
LEDGER = """
    CREATE TABLE ledger (seq bigserial, "group" text, partition text, "offset" bigint, n integer);
    CREATE INDEX ON ledger ("group")
"""
WRITE = """
    INSERT INTO ledger ("group", partition, "offset", n)
    SELECT %s, %s, o, n FROM unnest(%s::bigint[], %s::integer[]) AS message (o, n) ORDER BY o
"""
LEASE_SECONDS = 1.0
# A process that is stopped between ack and COMMIT locks the partition until the server ends its session.
SHORT_TIMEOUT = "-c idle_in_transaction_session_timeout=1500"
BATCH = 20


def say(word: object) -> None:
    print(word, flush=True)


def client(face: Face, url: str, **options: Any) -> Any:
    return (Skep if face == "sync" else AsyncSkep)(url, **options)


class Ledger:
    """Processes every message once: writes a row and acks in one transaction."""

    def __init__(self, face: Face, url: str, queue: str, group: str) -> None:
        self.face: Face = face
        self.url, self.queue, self.group = url, queue, group
        self.stop = threading.Event()
        self._connection: Any = None

    def run(self) -> None:
        play(self._run(), with_loop=self.face == "async")

    async def _run(self) -> None:
        async with either(client(self.face, self.url, poll_interval=0.1)) as mq:
            while not self.stop.is_set():
                source = mq.queue(self.queue).consume(
                    group=self.group, batch=BATCH, lease_time=LEASE_SECONDS, idle_timeout=0.2
                )
                async for batch in each(source):
                    with suppress(SkepError, psycopg.Error):  # a batch whose block fails is delivered again
                        async with either(batch):
                            await self._write(batch)
        if self._connection is not None:
            await settle(self._connection.close())

    async def _write(self, batch: Any) -> None:
        connection = await self._connect()
        async with either(connection.transaction()):
            offsets, numbers = [m.offset for m in batch], [m.payload for m in batch]
            await settle(connection.execute(WRITE, [self.group, batch[0].partition, offsets, numbers]))
            await settle(batch.ack(connection=connection))

    async def _connect(self) -> Any:
        if self._connection is None or self._connection.closed:
            kind = psycopg.Connection if self.face == "sync" else psycopg.AsyncConnection
            self._connection = await settle(kind.connect(self.url, autocommit=True, options=SHORT_TIMEOUT))
        return self._connection


class Producer:
    """Pushes numbers from 0 to its own partition until it is stopped; `count` is the number of accepted messages."""

    def __init__(self, face: Face, url: str, queue: str, partition: str, *, buffered: bool) -> None:
        self.face: Face = face
        self.url, self.queue, self.partition = url, queue, partition
        self.stop = threading.Event()
        self.count = self.errors = 0
        self._push = self._push_buffered if buffered else self._push_plain

    def run(self) -> None:
        play(self._run(), with_loop=self.face == "async")

    async def _run(self) -> None:
        async with either(client(self.face, self.url, timeout=5)) as mq:
            await self._push(mq.queue(self.queue))

    async def _push_buffered(self, queue: Any) -> None:
        async with either(queue.buffer(size=10, delay=0.01)) as buffer:
            while not self.stop.wait(0.003):
                await settle(buffer.push(self.count, partition=self.partition))
                self.count += 1

    async def _push_plain(self, queue: Any) -> None:
        """Repeat a push that may have failed; its transaction id prevents a duplicate."""
        while not self.stop.wait(0.003):
            name = f"{self.partition}.{self.count}"
            while not await self._pushed(queue.push, self.count, partition=self.partition, transaction_id=name):
                self.errors += 1
            self.count += 1

    async def _pushed(self, push: Callable[..., Awaitable[object]], *arguments: Any, **options: Any) -> bool:
        try:
            await settle(push(*arguments, **options))
        except SkepError as error:
            if not error.retryable:
                raise
            return False
        return True


def wait_to_be_killed() -> None:
    while True:
        time.sleep(60)


async def some(face: Face, url: str, queue: str, group: str, count: str) -> None:
    async with either(client(face, url)) as mq:
        batch = await settle(mq.queue(queue).pop(group=group, batch=BATCH, lease_time=LEASE_SECONDS))
        for message in batch[: int(count)]:
            await settle(batch.ack(message))
            say(message.offset)
        say("pausing")
        wait_to_be_killed()


async def hold(face: Face, url: str, queue: str, group: str) -> None:
    """Send every kind of ack too late."""
    async with either(client(face, url)) as mq:
        batch = await settle(mq.queue(queue).pop(group=group, batch=BATCH, lease_time=LEASE_SECONDS))
        say("holding")
        sys.stdin.readline()
        kind = psycopg.Connection if face == "sync" else psycopg.AsyncConnection
        async with either(await settle(kind.connect(url))) as connection:
            for send_ack in (
                lambda: batch.ack(batch[0]),
                lambda: batch.fail(batch[1], "late"),
                lambda: batch.dead_letter(None, "late"),
                batch.extend,
                batch.release,
                lambda: batch.ack(connection=connection),
            ):
                say(await outcome(send_ack))
                await settle(connection.rollback())
        say("open" if batch.open else "lost" if batch.lost else "acked")


async def outcome(send_ack: Callable[[], Any]) -> str:
    try:
        await settle(send_ack())
    except SkepError as error:
        return type(error).__name__
    return "stored"


async def handle(face: Face, url: str, queue: str, group: str) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    async with either(client(face, url)) as mq:

        @mq.consumer(queue, group=group, batch=BATCH, lease_time=LEASE_SECONDS, fetch_ahead=0)
        def handler(message: Message) -> None:
            say(f"begin {message.offset}")
            sys.stdin.readline()

        await settle(mq.run())


async def produce(face: Face, url: str, queue: str, partition: str) -> None:
    async with either(client(face, url)) as mq, either(mq.queue(queue).buffer(size=10, delay=0.005)) as buffer:
        for count in itertools.count(1):
            await settle(buffer.push(count - 1, partition=partition))
            if count % 25 == 0:
                await settle(buffer.flush())
                say(count)


def main(face: Face, job: str, *arguments: str) -> None:
    if job == "ledger":
        Ledger(face, *arguments).run()
    else:
        work = {"some": some, "hold": hold, "handle": handle, "produce": produce}[job]
        play(work(face, *arguments), with_loop=face == "async")


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
