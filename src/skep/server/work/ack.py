"""Acks of many requests in one database call."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from skep.client.aio.database import AsyncDatabase
from skep.server.work import calls, tracing

Status = Literal["completed", "failed", "failed_alone", "dead_letter", "release"]


class AckRequest(NamedTuple):
    """The ack of one message, or of every message of a lease that has no ack yet."""

    lease: str
    id: str | None
    status: Status
    error: str | None = None
    delay: float | None = None  # seconds until a failed or released message is delivered again


class Acker:
    """Applies the acks of several requests by one call. The result says for each ack whether it was applied."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def __call__(self, requests: Sequence[Sequence[AckRequest]]) -> list[list[bool]]:
        acks = [ack for request in requests for ack in request]
        arguments = {
            "leases": [ack.lease for ack in acks],
            "ids": [ack.id for ack in acks],
            "statuses": [ack.status for ack in acks],
            "errors": [ack.error for ack in acks],
            "delays": [ack.delay for ack in acks] if any(ack.delay is not None for ack in acks) else None,
        }
        with tracing.span("ack", {"skep.requests": len(requests), "messaging.batch.message_count": len(acks)}):
            applied = iter(await self._database.call(calls.ACK, arguments, bool))
        return [[next(applied) for _ in request] for request in requests]
