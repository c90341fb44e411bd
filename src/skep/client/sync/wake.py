# Generated from src/skep/client/aio/wake.py by `make format`. Change that file.
"""Wake waiting consumers: directly in this process, by NOTIFY in others. Without either they poll.

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
from skep.client.sync import runtime
from skep.client.sync.database import Database
from skep.errors import SkepError

log = logging.getLogger("skep")

COALESCE = 0.05
RELISTEN_DELAY = 5.0
LISTEN_SLICE = 2.0  # seconds until a listener notices that its client is closed, if it misses the NOTIFY of close()


class Waiter:
    """A caller that waits for messages of one queue, or (None) of any queue."""

    def __init__(self, queue: str | None) -> None:
        self.queue = queue
        self.woken = runtime.Event()

    def wake(self) -> None:
        self.woken.set()


class Wakeups:
    """The waiters of a client, its NOTIFY for other processes and its LISTEN."""

    def __init__(self, database: Database, on_push: Callable[[set[str] | None], None] | None = None) -> None:
        self._database = database
        self._on_push = on_push  # called with the queues of every push, in any process; None means any queue
        self._origin = str(uuid4())
        self._waiters: set[Waiter] = set()
        self._pending: deque[set[str]] = deque()
        self._has_pending = runtime.Event()
        self._starting = threading.Lock()
        self._notifier: runtime.BackgroundTask | None = None
        self._listener: runtime.BackgroundTask | None = None
        self._listening = False
        self._closing = runtime.Event()
        self._closed = False

    def pushed(self, queues: set[str]) -> None:
        """Wake the waiters of these queues, here and in other processes."""
        self._wake(queues)
        self._pending.append(queues)
        self._has_pending.set()
        with self._starting:
            if self._notifier is None and not self._closed:
                self._notifier = runtime.BackgroundTask("notifier", self._notify)

    def add(self, waiter: Waiter) -> None:
        self._waiters.add(waiter)
        self.listen()

    def listen(self) -> None:
        with self._starting:
            if self._listener is None and not self._closed:
                self._listener = runtime.BackgroundTask("listener", self._listen)

    def remove(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def _wake(self, queues: set[str] | None) -> None:
        if self._on_push is not None:
            self._on_push(queues)
        for waiter in tuple(self._waiters):
            if queues is None or waiter.queue is None or waiter.queue in queues:
                waiter.wake()

    def _notify(self) -> None:
        while not self._closed:
            self._has_pending.wait()
            self._send()
            self._closing.wait(COALESCE)

    def _send(self) -> None:
        self._has_pending.clear()
        queues: set[str] = set()
        while self._pending:
            queues |= self._pending.popleft()
        try:
            self._database.value(calls.NOTIFY, {"origin": self._origin, "queues": sorted(queues)})
        except (SkepError, psycopg.Error) as error:
            log.warning("could not notify other consumers, which find the messages by polling: %s", error)

    def _listen(self) -> None:
        """Listen for pushes of other processes. Errors are only logged: without LISTEN consumers poll."""
        while not self._closed:
            try:
                self._database.open()
                if not self._database.direct:
                    log.info("the connection goes through a pooler: no LISTEN, consumers poll")
                    return
                with self._database.connect() as connection:
                    connection.execute(calls.LISTEN)
                    self._listening = True
                    self._wake(None)  # for messages pushed before the LISTEN
                    while not self._closed:
                        for notification in connection.notifies(timeout=LISTEN_SLICE, stop_after=1):
                            self._on_notification(notification.payload)
            except (SkepError, psycopg.Error, OSError) as error:
                self._listening = False
                if not self._closed:
                    log.info("LISTEN failed, consumers poll until it works again: %s", error)
            self._closing.wait(RELISTEN_DELAY)

    def _on_notification(self, payload: str) -> None:
        try:
            received = json.loads(payload)
            if received["origin"] != self._origin:
                self._wake(set(received["queues"]) if "queues" in received else None)
        except (ValueError, TypeError, KeyError):  # other programs may use the channel, too
            self._wake(None)

    def close(self) -> None:
        """Send the pending NOTIFY and end both tasks."""
        with self._starting:
            self._closed = True
            notifier, self._notifier = self._notifier, None
            listener, self._listener = self._listener, None
        self._closing.set()
        self._has_pending.set()
        if notifier is not None:
            notifier.join()
        if self._pending:
            self._send()
        if listener is not None:
            self._wake_listener()
            listener.join()

    def _wake_listener(self) -> None:
        """Send a NOTIFY to our own listener, so that it notices the close. It needs no privileges."""
        if self._listening:
            message = json.dumps({"origin": self._origin, "queues": []})
            try:
                self._database.value(calls.WAKE_LISTENER, {"message": message})
            except (SkepError, psycopg.Error) as error:
                log.info("could not wake the listener, it ends a little later: %s", error)
