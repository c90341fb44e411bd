"""Pushes and answers that happen together or not at all."""

from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from skep.client import calls
from skep.client.aio.batch import AsyncBatch
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.wake import AsyncWakes
from skep.client.encode import as_object, describe, dumps
from skep.client.plan import Status
from skep.message import DEFAULT_PARTITION, Message, NewMessage, Receipt


class AsyncTransaction:
    """Collects; everything is done in one call when the block ends, and nothing if it ends by an exception.

    To write to your own tables as well, use `connection=` of push and ack instead.
    """

    def __init__(self, database: AsyncDatabase, wakes: AsyncWakes, producer: str | None) -> None:
        self._database = database
        self._wakes = wakes
        self._producer = producer
        self._operations: list[dict[str, Any]] = []
        self._queues: set[str] = set()
        self._answered: list[tuple[AsyncBatch, Message | None, bool]] = []
        self.receipts: list[Receipt] = []  # of the pushes, in their order, once the block has ended

    def push(
        self,
        queue: str,
        payload: object,
        *,
        partition: str = DEFAULT_PARTITION,
        transaction_id: str | None = None,
        headers: dict[str, Any] | None = None,
        trace_id: UUID | str | None = None,
        delay: float | timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        message = NewMessage(payload, partition, transaction_id, headers, trace_id, delay, deliver_at)
        self._operations.append({"push": as_object(queue, message, self._producer)})
        self._queues.add(queue)

    def ack(self, batch: AsyncBatch, message: Message | None = None) -> None:
        self._answer(batch, message, "completed", None)

    def fail(
        self,
        batch: AsyncBatch,
        message: Message | None,
        error: object,
        *,
        retry_after: float | None = None,
        alone: bool = False,
    ) -> None:
        """One message failed, or (None) all that have no answer yet; options as of `batch.fail`."""
        self._answer(batch, message, "failed_alone" if alone else "failed", error, retry_after)

    def dead_letter(self, batch: AsyncBatch, message: Message | None, error: object) -> None:
        self._answer(batch, message, "dead_letter", error)

    def _answer(
        self, batch: AsyncBatch, message: Message | None, status: Status, error: object, delay: float | None = None
    ) -> None:
        answer: dict[str, Any] = {"lease": batch.lease, "status": status}
        if message is not None:
            answer["id"] = message.id
        if error is not None:
            answer["error"] = describe(error)
        if delay is not None:
            answer["delay"] = delay
        self._operations.append({"ack": answer})
        self._answered.append((batch, message, status == "failed_alone"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not self._operations:
            return
        arguments = {"operations": dumps(self._operations)}
        self.receipts = await self._database.call(calls.TRANSACTION, arguments, _receipt)
        for batch, message, ends_lease in self._answered:
            batch.settle(message)
            if message is not None and ends_lease:
                batch.settle_lease(message)
        if self._queues:
            self._wakes.pushed(self._queues)


def _receipt(stored: dict[str, Any]) -> Receipt:
    created_at = datetime.fromisoformat(stored["created_at"])
    due_at = stored["due_at"] and datetime.fromisoformat(stored["due_at"])
    return Receipt(stored["status"], UUID(stored["id"]), stored["partition_id"], stored["offset"], created_at, due_at)
