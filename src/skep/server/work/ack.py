"""POST /api/v1/ack and /ack/batch: the answers of many requests in one call.

An answer names a message by (partitionId, transactionId). Without a leaseId it counts for the lease that its group has
on that message now. It never moves anything back, and a repeat of one that has counted is a success without effect.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.server.http.asgi import HttpError, decode
from skep.server.work import address, calls, tracing

QUEUE_MODE = "__QUEUE_MODE__"
STATUSES = {
    "completed": "completed",
    "success": "completed",
    "acked": "completed",
    "ok": "completed",
    "failed": "failed",
    "dlq": "dlq",
    "retry": "retry",
    "nack": "nack",
}


class Answer(msgspec.Struct, rename="camel"):
    """What a consumer says of one message."""

    transaction_id: str
    partition_id: str
    status: str = "completed"
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class Batch(msgspec.Struct, rename="camel"):
    """What is posted to /ack/batch."""

    acknowledgments: list[Answer]
    consumer_group: str | None = None


class Verdict(msgspec.Struct, rename="camel"):
    """What became of one answer."""

    index: int
    transaction_id: str
    success: bool
    noop: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool


_one = msgspec.json.Decoder(Answer)
_many = msgspec.json.Decoder(Batch)
_encoder = msgspec.json.Encoder()


def parse(body: bytes) -> list[Answer]:
    """Read one answer. A single failure ends its lease: the client that sends it forgets what comes behind."""
    answer = decode(_one, body, _said)
    if answer.status == "failed":
        answer.status = "nack"
    return [answer]


def parse_batch(body: bytes, max_batch: int) -> list[Answer]:
    """Read a batch; the group of the batch is the group of each answer."""
    batch = decode(_many, body, _said)
    if len(batch.acknowledgments) > max_batch:
        raise HttpError(413, f"at most {max_batch} acknowledgments fit into one request", "batch_too_large")
    for answer in batch.acknowledgments:
        answer.consumer_group = batch.consumer_group
    return batch.acknowledgments


def _said(error: str) -> str:
    """Say what Queen says of a missing or malformed field."""
    of_batch = "$.acknowledgments[" in error
    match error:
        case _ if "transactionId" in error:
            return (
                "Each acknowledgment must have a valid transactionId string"
                if of_batch
                else "transactionId is required"
            )
        case _ if "partitionId" in error:
            start = (
                "Each acknowledgment must have a valid partitionId string" if of_batch else "partitionId is required"
            )
            return f"{start} to ensure message uniqueness"
        case _ if "acknowledgments" in error and not of_batch:
            return "acknowledgments array is required"
        case _:
            return error


def weigh(answers: list[Answer]) -> int:
    return len(answers)


class Acker:
    """Stores the answers of several requests by one call."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def __call__(self, requests: Sequence[list[Answer]]) -> list[list[Verdict]]:
        answers = [answer for request in requests for answer in request]
        good = [answer for answer in answers if is_sound(answer)]
        with tracing.span("ack", {"skep.requests": len(requests), "messaging.batch.message_count": len(answers)}):
            rows = iter(await self._rows(good) if good else ())
        return [
            [
                _verdict(index, answer, next(rows)) if is_sound(answer) else _refused(index, answer)
                for index, answer in enumerate(request)
            ]
            for request in requests
        ]

    async def _rows(self, answers: list[Answer]) -> list[tuple[Any, ...]]:
        if is_whole(answers):
            first = answers[0]
            transaction_ids = [answer.transaction_id for answer in answers]
            lease = {"partition_id": first.partition_id, "transaction_ids": transaction_ids, "lease": first.lease_id}
            ((queue, partition),) = await self._database.call(calls.ACK_LEASE, lease, _row)
            if queue is not None:
                return [(True, False, None, queue, partition, True, False)] * len(answers)
        return await self._database.call(calls.ACK, arguments(answers), _row)


def is_whole(answers: list[Answer]) -> bool:
    """Tell whether these may complete one lease: the usual request, for which there is a cheaper call."""
    first = answers[0]
    return bool(first.lease_id) and all(
        answer.lease_id == first.lease_id
        and answer.partition_id == first.partition_id
        and STATUSES[answer.status] == "completed"
        for answer in answers
    )


def is_sound(answer: Answer) -> bool:
    """Tell whether the database can read it at all: a malformed id is the id of no message."""
    return (
        answer.status in STATUSES
        and address.is_uuid(answer.partition_id)
        and (not answer.lease_id or address.is_uuid(answer.lease_id))
        and "\0" not in answer.transaction_id + (answer.consumer_group or "") + (answer.error or "")
    )


def arguments(answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "partition_ids": [answer.partition_id for answer in answers],
        "transaction_ids": [answer.transaction_id for answer in answers],
        "groups": [answer.consumer_group or QUEUE_MODE for answer in answers],
        "leases": [answer.lease_id or None for answer in answers],
        "statuses": [STATUSES[answer.status] for answer in answers],
        "errors": [answer.error or None for answer in answers],
    }


def _row(*columns: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return columns


def _verdict(index: int, answer: Answer, row: tuple[Any, ...]) -> Verdict:
    return Verdict(index, answer.transaction_id, *row)


def _refused(index: int, answer: Answer) -> Verdict:
    if answer.status not in STATUSES:
        error = f"unknown status; it is one of {', '.join(STATUSES)}"
    elif not address.is_uuid(answer.partition_id):
        error = "Message not found"
    else:
        error = "Invalid or expired lease"
    return Verdict(
        index,
        answer.transaction_id,
        success=False,
        noop=False,
        error=error,
        queue_name=None,
        partition_name=None,
        lease_released=False,
        dlq=False,
    )


def encode(verdicts: list[Verdict]) -> bytes:
    return _encoder.encode(verdicts)
