"""Writes down what `mq.consumer` does by itself: its pops, acks, releases and extends, and what it is told.

The consumer loop pops ahead, stores acks together and extends leases when it likes. Its handler does not learn what
became of them, but every one of them is a call of the client's database.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from faults.clients.context import Me, outcome_of, row
from faults.history import Kind, Place
from skep import AsyncSkep, SkepError
from skep.client import calls
from skep.message import Message

KINDS: dict[str, Kind] = {"completed": "completed", "failed": "failed", "dead_letter": "dlq", "release": "released"}
VALUES: dict[str, Kind] = {calls.ACK: "completed", calls.RELEASE: "released", calls.EXTEND: "extended"}


class Witness:
    """Stands before the database of a client."""

    def __init__(self, me: Me, mq: AsyncSkep, queue: str, group: str) -> None:
        database = mq._database  # noqa: SLF001  (no other place sees what the loop is told)
        self._me, self._queue, self._group = me, queue, group
        self._call, self._value = database.call, database.value
        self._leases: dict[UUID, dict[UUID, Place]] = {}  # messages of each lease that have no ack yet

    async def call(
        self, query: LiteralString, arguments: Mapping[str, Any], make: Callable[..., Any], *, binary: bool = False
    ) -> list[Any]:
        if query == calls.POP:
            return await self._pop(query, arguments, make)
        if query == calls.ACK_MANY:
            return await self._ack_many(query, arguments, make)
        return await self._call(query, arguments, make, binary=binary)

    async def value(self, query: LiteralString, arguments: Mapping[str, Any]) -> Any:
        if query not in VALUES:
            return await self._value(query, arguments)
        kind, lease = VALUES[query], arguments["lease"]
        invoked = [self._invoke(kind, lease, None)]
        try:
            answer = await self._value(query, arguments)
        except (SkepError, psycopg.Error) as error:
            self._told(invoked, [outcome_of(error)], error)
            raise
        self._told(invoked, ["ok"])
        if kind == "completed":
            self._leases.pop(lease, None)
        return answer

    async def _pop(self, query: LiteralString, arguments: Mapping[str, Any], make: Callable[..., Any]) -> list[Message]:
        about = {"lease_time": arguments["lease_time"], "batch": arguments["batch"]}
        call = self._me.history.invoke("pop", queue=self._queue, group=self._group, **about)
        try:
            messages: list[Message] = await self._call(query, arguments, make)
        except (SkepError, psycopg.Error) as error:
            self._me.history.told(call, outcome_of(error), error=repr(error))
            raise
        lease = str(messages[0].lease) if messages else ""
        self._me.history.told(call, "ok", lease=lease, messages=[row(message) for message in messages])
        for message in messages:
            self._leases.setdefault(message.lease, {})[message.id] = (message.partition_id, message.offset)
        return messages

    async def _ack_many(
        self, query: LiteralString, arguments: Mapping[str, Any], make: Callable[..., Any]
    ) -> list[bool]:
        acks = [*zip(arguments["leases"], arguments["ids"], arguments["statuses"], strict=True)]
        before = {lease: dict(self._leases.get(lease, {})) for lease, _, _ in acks}
        invoked: list[int] = []
        for lease, message, status in acks:
            invoked.append(self._invoke(KINDS[status], lease, message))
            gone = [message] if message is not None else [*self._leases.get(lease, {})]
            for each in gone:  # a later ack of this call is for the rest of its lease
                self._leases.get(lease, {}).pop(each, None)
        try:
            applied = await self._call(query, arguments, make)
        except (SkepError, psycopg.Error) as error:
            self._told(invoked, [outcome_of(error)] * len(invoked), error)
            self._leases |= before  # the loop says it again
            raise
        self._told(invoked, ["ok" if each else "refused" for each in applied])
        return applied

    def _invoke(self, kind: Kind, lease: UUID, message: UUID | None) -> int:
        waiting = self._leases.get(lease, {})
        places = [*waiting.values()] if message is None else [waiting[message]] if message in waiting else []
        return self._me.history.invoke("ack", kind=kind, group=self._group, lease=str(lease), places=places)

    def _told(self, invoked: Sequence[int], outcomes: Sequence[str], error: Exception | None = None) -> None:
        for call, outcome in zip(invoked, outcomes, strict=True):
            self._me.history.told(call, outcome, **({} if error is None else {"error": repr(error)}))


def bear_witness(me: Me, mq: AsyncSkep, queue: str, group: str) -> None:
    """Write down every call of this client, which has consumers of one queue and group and does nothing else."""
    witness = Witness(me, mq, queue, group)
    mq._database.call = witness.call  # type: ignore[method-assign]  # noqa: SLF001
    mq._database.value = witness.value  # type: ignore[method-assign]  # noqa: SLF001
