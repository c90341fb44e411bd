# Generated from src/skep/client/aio/driver.py by `make format`. Change that file.
"""Does what the plan of a consumer says, one call to the database after the other, and tells it what came of it."""

import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from uuid import UUID

from skep.client import calls
from skep.client.plan import Answer, Done, Extend, Plan, Pop, Release, Report, Start, Store, Wait
from skep.client.sync import runtime
from skep.client.sync.batch import Batch
from skep.client.sync.database import Database
from skep.client.sync.wake import Waiter, Wakes
from skep.errors import SkepError, StaleLease
from skep.message import Message
from skep.scope import Scope

log = logging.getLogger("skep")


class Driver(Waiter):
    """The loop of one consumer; `start` is given each batch that is to be handled."""

    def __init__(
        self,
        database: Database,
        wakes: Wakes,
        scope: Scope,
        plan: Plan,
        *,
        batch: int,
        start: Callable[[Batch], None],
    ) -> None:
        super().__init__(scope.queue)
        self._database = database
        self._wakes = wakes
        self._plan = plan
        self._arguments = scope.arguments(batch=batch, lease_time=plan.lease_time)
        self._start = start
        self._held: dict[UUID, Batch] = {}
        self._reports: runtime.Inbox[Report] = runtime.Inbox()

    def wake(self) -> None:
        self._reports.put(self._plan.woken)

    def stop(self) -> None:
        """Lease nothing more; `run` returns when what is begun is finished and stored."""
        self._reports.put(self._plan.stop)

    def answered(self, answers: list[Answer]) -> None:
        self._reports.put(lambda: self._plan.answered(answers))

    def finished(self, batch: Batch, answers: list[Answer]) -> None:
        """The handler is through with this batch; these are its last answers."""

        def report() -> None:
            self._plan.answered(answers)
            self._plan.finished(batch.lease)
            del self._held[batch.lease]

        self._reports.put(report)

    def run(self) -> None:
        self._wakes.add(self)
        try:
            self._loop()
        except runtime.Interrupted:
            self._plan.stop()
            self._loop()
            raise
        finally:
            self._wakes.remove(self)

    def _loop(self) -> None:
        while not isinstance(action := self._plan.next(monotonic()), Done):
            try:
                self._do(action)
            except SkepError as error:
                if not error.retryable:
                    raise
                log.warning("consumer of %s: %s; trying again", self._arguments["queue"] or "a namespace", error)
                self._plan.failed(monotonic())

    def _do(self, action: Pop | Start | Store | Release | Extend | Wait) -> None:
        match action:
            case Wait(seconds):
                for report in self._reports.take(seconds):
                    report()
            case Start(lease):
                self._plan.started(lease)
                self._start(self._held[lease])
            case Pop():
                self._pop()
            case Store(answers):
                self._store(answers)
            case Release(lease):
                self._let_go(lease)
            case Extend(lease):
                self._extend(lease)

    def _pop(self) -> None:
        asked_at = monotonic()
        messages = runtime.to_the_end(self._database.call(calls.POP, self._arguments, Message), self._undo)
        if messages:
            batch = Batch(self._database, messages)
            self._held[batch.lease] = batch
        self._plan.popped(asked_at, monotonic(), messages[0].lease if messages else None)

    def _undo(self, messages: list[Message]) -> None:
        if messages:
            self._database.value(calls.RELEASE, {"lease": messages[0].lease})

    def _store(self, answers: tuple[Answer, ...]) -> None:
        applied = self._tell(answers)
        self._plan.stored(answers)
        if late := {answer.lease for answer, stored in zip(answers, applied, strict=True) if not stored}:
            log.warning("too late: the messages of %d leases that are over come again", len(late))

    def _tell(self, answers: tuple[Answer, ...]) -> list[bool]:
        """Return for each answer whether its lease was still there. A completed batch takes the short way."""
        first = answers[0]
        if len(answers) == 1 and first.message is None and first.status == "completed":
            try:
                self._database.value(calls.ACK, {"lease": first.lease, "id": None})
            except StaleLease:
                return [False]
            return [True]
        arguments = {
            "leases": [answer.lease for answer in answers],
            "ids": [answer.message for answer in answers],
            "statuses": [answer.status for answer in answers],
            "errors": [answer.error for answer in answers],
        }
        return self._database.call(calls.ACK_MANY, arguments, bool)

    def _let_go(self, lease: UUID) -> None:
        with suppress(StaleLease):
            self._database.value(calls.RELEASE, {"lease": lease})
        self._plan.released(lease)
        del self._held[lease]

    def _extend(self, lease: UUID) -> None:
        asked_at = monotonic()
        if not self._held[lease].open:  # answered, maybe in a transaction of the handler's, whose end we would wait for
            self._plan.lost(lease)
            return
        try:
            self._database.value(calls.EXTEND, {"lease": lease, "seconds": self._plan.lease_time})
        except StaleLease:
            self._lose(lease)
        else:
            self._plan.extended(asked_at, lease)

    def _lose(self, lease: UUID) -> None:
        """It expired, or the group was moved or deleted. Its messages come again."""
        batch = self._held[lease]
        if not self._plan.lost(lease):
            del self._held[lease]
        if batch.open:
            batch.lost = True
            log.warning("the lease of %r is over: what it had not answered comes again", batch)
