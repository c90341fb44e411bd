"""The messages of one pop."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import LiteralString, Self, overload
from uuid import UUID

from skep.client import calls
from skep.client.aio.database import AsyncDatabase
from skep.client.aio.guest import execute_in
from skep.client.encode import describe
from skep.client.plan import Status
from skep.errors import InvalidArgument, StaleLease
from skep.message import Message


class AsyncBatch(Sequence[Message]):
    """The messages of one pop, in order, with a lease for each partition they are from. Empty if there were none.

    An answer is stored when the call returns. As a context manager it answers by itself what has no answer at the end:
    completed, or failed with the text of the exception.
    """

    def __init__(self, database: AsyncDatabase, messages: Sequence[Message], *, answered: bool = False) -> None:
        self._database = database
        self._messages = tuple(messages)
        self._unanswered: set[UUID] = set() if answered else {message.id for message in self._messages}
        self._unsure = False  # an answer could not be stored, or who knows
        self.lost = False  # the lease ended before the answers; the messages come again

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
        """The lease of the first message; a batch of one partition has no other."""
        if not self._messages:
            raise InvalidArgument("an empty batch has no lease", hint="`if batch:` tells whether something was popped.")
        return self._messages[0].lease

    @property
    def leases(self) -> tuple[UUID, ...]:
        """One lease for each partition, in the order of the messages."""
        return tuple(dict.fromkeys(message.lease for message in self._messages))

    @property
    def open(self) -> bool:
        """True while some message has no answer."""
        return bool(self._unanswered) and not self.lost

    @property
    def rest(self) -> Status:
        """The answer for the messages that have none, from one who has no more to say.

        Completed; but if somebody has tried to say something and could not, that may have been a failure: come again.
        """
        return "release" if self._unsure else "completed"

    async def ack(self, message: Message | None = None, *, connection: object = None) -> None:
        """One message is completed, or all without an answer. `connection`: together with your own transaction."""
        await self._answer(calls.ACK if message else calls.ACK_ALL, message, connection)

    async def fail(
        self,
        message: Message | None,
        error: object,
        *,
        retry_after: float | None = None,
        alone: bool = False,
        connection: object = None,
    ) -> None:
        """One message failed, or (None) all that have no answer yet.

        `retry_after`: seconds until the retry, instead of the delay of the retry policy. `alone`: this message is
        retried by itself, whatever becomes of the others. Its lease ends: messages of its partition that have no
        answer are delivered again, at the same attempt.
        """
        if message is None:
            if alone:
                raise InvalidArgument("only a message can fail alone, not a whole batch", hint="Name the message.")
            await self._answer(calls.FAIL_ALL, None, connection, error=_text(error), retry_after=retry_after)
            return
        said = {"error": _text(error), "retry_after": retry_after, "alone": alone}
        await self._answer(calls.FAIL, message, connection, **said)
        if alone:
            self.settle_lease(message)

    async def dead_letter(self, message: Message | None, error: object, *, connection: object = None) -> None:
        """To the dead letters now: one message, or (None) all that have no answer yet."""
        query = calls.DEAD_LETTER if message else calls.DEAD_LETTER_ALL
        await self._answer(query, message, connection, error=_text(error))

    async def release(self, *, delay: float | None = None) -> None:
        """Give back the messages that are not completed: they are delivered again, `delay` seconds from now.

        No attempt is counted.
        """
        await self._answer(calls.RELEASE_ALL, None, None, delay=delay)

    async def extend(self, seconds: float = 60) -> datetime:
        """Hold the lease so many seconds from now; returns the new deadline."""
        try:
            return await self._database.value(calls.EXTEND_ALL, {"leases": self._all_leases(), "seconds": seconds})
        except StaleLease:
            self.lost = True
            raise

    async def _answer(
        self, query: LiteralString, message: Message | None, connection: object, **said: str | float | None
    ) -> None:
        if not self._messages:
            return
        if message is not None and message.lease not in self.leases:
            raise InvalidArgument(f"message {message.id} is not in this batch", hint="Acknowledge it in its own batch.")
        which = (
            {"leases": self._all_leases()} if message is None else {"lease": str(message.lease), "id": str(message.id)}
        )
        arguments = {**which, **said}
        try:
            if connection is None:
                await self._database.value(query, arguments)
            else:
                await execute_in(connection, query, arguments)
        except StaleLease:
            self.lost = True
            raise
        except BaseException:
            self._unsure = True
            raise
        self.settle(message)

    def _all_leases(self) -> str:
        """Every connection of a guest takes a text; not every one takes a list."""
        _ = self.lease  # an empty batch has none
        return "{" + ",".join(str(lease) for lease in self.leases) + "}"

    def settle(self, message: Message | None) -> None:
        """An answer was stored, for one message or for the rest."""
        if message is None:
            self._unanswered.clear()
        else:
            self._unanswered.discard(message.id)

    def settle_lease(self, message: Message) -> None:
        """The lease of this message has ended: nothing more can be said about its messages."""
        self._unanswered -= {other.id for other in self._messages if other.lease == message.lease}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.open:
            return
        if error is None and self.rest == "completed":
            await self.ack()
        elif isinstance(error, Exception):
            await self.fail(None, error)
        else:  # somebody ends the program, which is no fault of the messages, or an answer got lost
            await self.release()


def _text(error: object) -> str | None:
    return None if error is None else describe(error)
