# Generated from src/skep/client/aio/batch.py by `make format`. Change that file.
"""The messages of one pop."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import LiteralString, Self, overload
from uuid import UUID

from skep.client import calls
from skep.client.encode import describe
from skep.client.plan import Status
from skep.client.sync.database import Database
from skep.client.sync.foreign_connection import execute_in
from skep.errors import InvalidArgument, StaleLease
from skep.message import Message


class Batch(Sequence[Message]):
    """The messages of one pop, in order, with one lease for each of their partitions. A batch may be empty.

    An ack is stored when the call returns. As a context manager a batch acknowledges the remaining messages at the end:
    as completed, or as failed if the block raised an exception.
    """

    def __init__(self, database: Database, messages: Sequence[Message], *, acked: bool = False) -> None:
        self._database = database
        self._messages = tuple(messages)
        self._pending: set[UUID] = set() if acked else {message.id for message in self._messages}
        self._unsure = False  # an ack failed, and may have been stored or not
        self.lost = False  # the lease ended before all messages were acknowledged; the others are delivered again

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __repr__(self) -> str:
        where = f" of {self[0].queue}/{self[0].partition} from offset {self[0].offset}" if self else ""
        return f"<{type(self).__name__}: {len(self)} messages{where}>"

    @property
    def lease(self) -> UUID:
        """The lease of the first message; the only one in a batch from one partition."""
        if not self._messages:
            raise InvalidArgument("an empty batch has no lease", hint="Check `if batch:` first.")
        return self._messages[0].lease

    @property
    def leases(self) -> tuple[UUID, ...]:
        """One lease for each partition, in the order of the messages."""
        return tuple(dict.fromkeys(message.lease for message in self._messages))

    @property
    def open(self) -> bool:
        """True while some messages are not acknowledged."""
        return bool(self._pending) and not self.lost

    @property
    def remaining_status(self) -> Status:
        """The status for the remaining messages when their handler has returned.

        They are completed. If an ack could not be stored, it may have been a failure, so they are delivered again.
        """
        return "release" if self._unsure else "completed"

    def ack(self, message: Message | None = None, *, connection: object = None) -> None:
        """Complete one message, or all remaining ones. With `connection`, the ack is part of your transaction on it."""
        self._send(calls.ACK if message else calls.ACK_ALL, message, connection)

    def fail(
        self,
        message: Message | None,
        error: object,
        *,
        retry_after: float | None = None,
        alone: bool = False,
        connection: object = None,
    ) -> None:
        """Fail one message, or (None) all remaining ones.

        `retry_after` replaces the delay of the retry policy, in seconds. With `alone` only this message is retried and
        its lease ends: remaining messages of its partition are delivered again without counting an attempt.
        """
        if message is None:
            if alone:
                raise InvalidArgument("alone needs a message, got None", hint="Pass the message that failed.")
            self._send(calls.FAIL_ALL, None, connection, error=_text(error), retry_after=retry_after)
            return
        details = {"error": _text(error), "retry_after": retry_after, "alone": alone}
        self._send(calls.FAIL, message, connection, **details)
        if alone:
            self.mark_lease_ended(message)

    def dead_letter(self, message: Message | None, error: object, *, connection: object = None) -> None:
        """Move one message, or (None) all remaining ones, to the dead letters now."""
        query = calls.DEAD_LETTER if message else calls.DEAD_LETTER_ALL
        self._send(query, message, connection, error=_text(error))

    def release(self, *, delay: float | None = None) -> None:
        """Release the remaining messages: they are delivered again, `delay` seconds from now. No attempt is counted."""
        self._send(calls.RELEASE_ALL, None, None, delay=delay)

    def extend(self, seconds: float = 60) -> datetime:
        """Extend the lease to `seconds` from now, and return the time at which it expires."""
        try:
            return self._database.value(calls.EXTEND_ALL, {"leases": self._all_leases(), "seconds": seconds})
        except StaleLease:
            self.lost = True
            raise

    def _send(
        self, query: LiteralString, message: Message | None, connection: object, **details: str | float | None
    ) -> None:
        if not self._messages:
            return
        if message is not None and message.lease not in self.leases:
            raise InvalidArgument(
                f"message {message.id} is not in this batch", hint="Acknowledge it with its own batch."
            )
        which = (
            {"leases": self._all_leases()} if message is None else {"lease": str(message.lease), "id": str(message.id)}
        )
        arguments = {**which, **details}
        try:
            if connection is None:
                self._database.value(query, arguments)
            else:
                execute_in(connection, query, arguments)
        except StaleLease:
            self.lost = True
            raise
        except BaseException:
            self._unsure = True
            raise
        self.mark_acked(message)

    def _all_leases(self) -> str:
        """Return the leases as text, because not every foreign connection accepts a list."""
        _ = self.lease  # raises if the batch is empty
        return "{" + ",".join(str(lease) for lease in self.leases) + "}"

    def mark_acked(self, message: Message | None) -> None:
        """Record that an ack was stored, for one message or for all remaining ones."""
        if message is None:
            self._pending.clear()
        else:
            self._pending.discard(message.id)

    def mark_lease_ended(self, message: Message) -> None:
        """Record that the lease of this message has ended, so that its messages cannot be acknowledged any more."""
        self._pending -= {other.id for other in self._messages if other.lease == message.lease}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.open:
            return
        if error is None and self.remaining_status == "completed":
            self.ack()
        elif isinstance(error, Exception):
            self.fail(None, error)
        else:  # the program is interrupted, which is not a failure of the messages, or an ack was lost
            self.release()


def _text(error: object) -> str | None:
    return None if error is None else describe(error)
