# Generated from src/skep/client/aio/driver.py by `make format`. Change that file.
"""Perform the actions of a consumer's plan, one database call at a time, and report the results to it."""

import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from uuid import UUID

from skep.client import calls
from skep.client.plan import Ack, Done, Extend, Plan, Pop, Release, Report, Start, StoreAcks, Wait
from skep.client.sync import runtime
from skep.client.sync.batch import Batch
from skep.client.sync.database import Database
from skep.client.sync.wake import Waiter, Wakeups
from skep.errors import SkepError, StaleLease
from skep.message import Message
from skep.scope import Scope

log = logging.getLogger("skep")


class Driver(Waiter):
    """The loop of one consumer. It calls `start` with each batch to handle."""

    def __init__(
        self,
        database: Database,
        wakeups: Wakeups,
        scope: Scope,
        plan: Plan,
        *,
        batch: int,
        start: Callable[[Batch], None],
    ) -> None:
        super().__init__(scope.queue)
        self._database = database
        self._wakeups = wakeups
        self._plan = plan
        self._arguments = scope.arguments(batch=batch, lease_time=plan.lease_time)
        self._start = start
        self._batches: dict[UUID, Batch] = {}
        self._reports: runtime.Inbox[Report] = runtime.Inbox()

    def wake(self) -> None:
        self._reports.put(self._plan.woken)

    def stop(self) -> None:
        """Lease no more batches. `run` returns when the started ones are finished and their acks are stored."""
        self._reports.put(self._plan.stop)

    def acked(self, acks: list[Ack]) -> None:
        self._reports.put(lambda: self._plan.acked(acks))

    def finished(self, batch: Batch, acks: list[Ack]) -> None:
        """Report that a handler has finished a batch, with its last acks."""

        def report() -> None:
            self._plan.acked(acks)
            self._plan.finished(batch.lease)
            del self._batches[batch.lease]

        self._reports.put(report)

    def run(self) -> None:
        self._wakeups.add(self)
        try:
            self._loop()
        except runtime.Interrupted:
            self._plan.stop()
            self._loop()
            raise
        finally:
            self._wakeups.remove(self)

    def _loop(self) -> None:
        while not isinstance(action := self._plan.next(monotonic()), Done):
            try:
                self._do(action)
            except SkepError as error:
                if not error.retryable:
                    raise
                log.warning("consumer of %s: %s; trying again", self._arguments["queue"] or "a namespace", error)
                self._plan.failed(monotonic())

    def _do(self, action: Pop | Start | StoreAcks | Release | Extend | Wait) -> None:
        match action:
            case Wait(seconds):
                for report in self._reports.take(seconds):
                    report()
            case Start(lease):
                self._plan.started(lease)
                self._start(self._batches[lease])
            case Pop():
                self._pop()
            case StoreAcks(acks):
                self._store(acks)
            case Release(lease):
                self._release(lease)
            case Extend(lease):
                self._extend(lease)

    def _pop(self) -> None:
        asked_at = monotonic()
        messages = runtime.complete_or_undo(self._database.call(calls.POP, self._arguments, Message), self._undo_pop)
        if messages:
            batch = Batch(self._database, messages)
            self._batches[batch.lease] = batch
        self._plan.popped(asked_at, monotonic(), messages[0].lease if messages else None)

    def _undo_pop(self, messages: list[Message]) -> None:
        if messages:
            self._database.value(calls.RELEASE, {"lease": messages[0].lease})

    def _store(self, acks: tuple[Ack, ...]) -> None:
        applied = self._send(acks)
        self._plan.stored(acks)
        if late := {ack.lease for ack, stored in zip(acks, applied, strict=True) if not stored}:
            log.warning("too late: %d leases have ended, and their messages are delivered again", len(late))

    def _send(self, acks: tuple[Ack, ...]) -> list[bool]:
        """Return for each ack whether its lease still existed. A single completed batch needs only the short call."""
        first = acks[0]
        if len(acks) == 1 and first.message is None and first.status == "completed":
            try:
                self._database.value(calls.ACK, {"lease": first.lease, "id": None})
            except StaleLease:
                return [False]
            return [True]
        arguments = {
            "leases": [ack.lease for ack in acks],
            "ids": [ack.message for ack in acks],
            "statuses": [ack.status for ack in acks],
            "errors": [ack.error for ack in acks],
        }
        return self._database.call(calls.ACK_MANY, arguments, bool)

    def _release(self, lease: UUID) -> None:
        with suppress(StaleLease):
            self._database.value(calls.RELEASE, {"lease": lease})
        self._plan.released(lease)
        del self._batches[lease]

    def _extend(self, lease: UUID) -> None:
        asked_at = monotonic()
        if not self._batches[
            lease
        ].open:  # acked, maybe in a transaction of the handler that is still open and locks the lease
            self._plan.lost(lease)
            return
        try:
            self._database.value(calls.EXTEND, {"lease": lease, "seconds": self._plan.lease_time})
        except StaleLease:
            self._mark_lost(lease)
        else:
            self._plan.extended(asked_at, lease)

    def _mark_lost(self, lease: UUID) -> None:
        """Record a lease that expired, or whose group was moved or deleted. Its messages are delivered again."""
        batch = self._batches[lease]
        if not self._plan.lost(lease):
            del self._batches[lease]
        if batch.open:
            batch.lost = True
            log.warning("the lease of %r has ended: its remaining messages are delivered again", batch)
