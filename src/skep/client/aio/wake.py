"""Waking those who wait: at once in this process, by NOTIFY in others, by their own polling if neither reaches them.

push ── waiters of this process
     └─ pending ── one NOTIFY for all pushes of 50 ms ── LISTEN of other processes ── their waiters
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from uuid import uuid4

import psycopg

from skep.client import calls
from skep.client.aio import runtime
from skep.client.aio.database import AsyncDatabase
from skep.errors import SkepError

log = logging.getLogger("skep")

COALESCE = 0.05
LISTEN_AGAIN = 5.0
LISTEN_SLICE = 2.0  # at the latest then a listener sees that its client is closed; usually its own NOTIFY tells it


class AsyncWaiter:
    """Somebody who waits for messages: in one queue, or in any."""

    def __init__(self, queue: str | None) -> None:
        self.queue = queue
        self.woken = runtime.Event()

    def wake(self) -> None:
        self.woken.set()


class AsyncWakes:
    """All waiters of a client, the NOTIFY it sends and the LISTEN it keeps."""

    def __init__(self, database: AsyncDatabase, heard: Callable[[set[str] | None], None] | None = None) -> None:
        self._database = database
        self._heard = heard  # told of every push, of here and elsewhere; None: perhaps, anywhere
        self._origin = str(uuid4())
        self._waiters: set[AsyncWaiter] = set()
        self._pending: deque[set[str]] = deque()
        self._has_pending = runtime.Event()
        self._starting = threading.Lock()
        self._notifier: runtime.Task | None = None
        self._listener: runtime.Task | None = None
        self._listening = False
        self._closing = runtime.Event()
        self._closed = False

    def pushed(self, queues: set[str]) -> None:
        """Something was stored in these queues."""
        self._wake(queues)
        self._pending.append(queues)
        self._has_pending.set()
        with self._starting:
            if self._notifier is None and not self._closed:
                self._notifier = runtime.Task("notifier", self._notify)

    def add(self, waiter: AsyncWaiter) -> None:
        self._waiters.add(waiter)
        self.listen()

    def listen(self) -> None:
        with self._starting:
            if self._listener is None and not self._closed:
                self._listener = runtime.Task("listener", self._listen)

    def remove(self, waiter: AsyncWaiter) -> None:
        self._waiters.discard(waiter)

    def _wake(self, queues: set[str] | None) -> None:
        if self._heard is not None:
            self._heard(queues)
        for waiter in tuple(self._waiters):
            if queues is None or waiter.queue is None or waiter.queue in queues:
                waiter.wake()

    async def _notify(self) -> None:
        while not self._closed:
            await self._has_pending.wait()
            await self._send()
            await self._closing.wait(COALESCE)

    async def _send(self) -> None:
        self._has_pending.clear()
        queues: set[str] = set()
        while self._pending:
            queues |= self._pending.popleft()
        try:
            await self._database.value(calls.NOTIFY, {"origin": self._origin, "queues": sorted(queues)})
        except (SkepError, psycopg.Error) as error:
            log.warning("could not notify other consumers, who will find the messages by polling: %s", error)

    async def _listen(self) -> None:
        """Without it consumers poll, so whatever goes wrong here is no more than a delay."""
        while not self._closed:
            try:
                await self._database.open()
                if not self._database.direct:
                    log.info("a pooler stands before the database: no LISTEN, consumers poll")
                    return
                async with await self._database.connect() as connection:
                    await connection.execute(calls.LISTEN)
                    self._listening = True
                    self._wake(None)  # for whatever came before the LISTEN
                    while not self._closed:
                        async for notification in connection.notifies(timeout=LISTEN_SLICE, stop_after=1):
                            self._hear(notification.payload)
            except (SkepError, psycopg.Error, OSError) as error:
                self._listening = False
                if not self._closed:
                    log.info("LISTEN ended, consumers poll until it is back: %s", error)
            await self._closing.wait(LISTEN_AGAIN)

    def _hear(self, payload: str) -> None:
        try:
            heard = json.loads(payload)
            if heard["origin"] != self._origin:
                self._wake(set(heard["queues"]) if "queues" in heard else None)
        except (ValueError, TypeError, KeyError):  # anyone may NOTIFY
            self._wake(None)

    async def close(self) -> None:
        """Send what is pending and end both tasks."""
        with self._starting:
            self._closed = True
            notifier, self._notifier = self._notifier, None
            listener, self._listener = self._listener, None
        self._closing.set()
        self._has_pending.set()
        if notifier is not None:
            await notifier.join()
        if self._pending:
            await self._send()
        if listener is not None:
            await self._wake_listener()
            await listener.join()

    async def _wake_listener(self) -> None:
        """Let our own listener hear something, so that it sees that we are closing. That needs no rights."""
        if self._listening:
            message = json.dumps({"origin": self._origin, "queues": []})
            try:
                await self._database.value(calls.WAKE_LISTENER, {"message": message})
            except (SkepError, psycopg.Error) as error:
                log.info("the listener ends a little later: %s", error)
