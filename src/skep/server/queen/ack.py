"""POST /api/v1/ack, /ack/batch and /lease/…/extend, with Queen's names and statuses.

An ack names a message by (partitionId, transactionId). Without a leaseId it counts for the live lease of its group that
holds the message. It never moves a cursor back, and a repeat of an ack that has counted is a success without effect.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.message import QUEUE_MODE
from skep.server.http.access import require_on_partitions, require_on_queues
from skep.server.http.asgi import HttpError, decode
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.http.state import State
from skep.server.queen import calls
from skep.server.work import address, tracing
from skep.server.work.merge import Merger

ACKS = 5_000  # of merged requests in one call
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


class QueenAck(msgspec.Struct, rename="camel"):
    """The ack of one message."""

    transaction_id: str
    partition_id: str
    status: str = "completed"
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class AckBatch(msgspec.Struct, rename="camel"):
    """The body of /ack/batch."""

    acknowledgments: list[QueenAck]
    consumer_group: str | None = None


class AckResult(msgspec.Struct, rename="camel"):
    """The result of one ack."""

    index: int
    transaction_id: str
    success: bool
    noop: bool
    error: str | None
    queue_name: str | None
    partition_name: str | None
    lease_released: bool
    dlq: bool


_one = msgspec.json.Decoder(QueenAck)
_many = msgspec.json.Decoder(AckBatch)
_encoder = msgspec.json.Encoder()


def parse(body: bytes) -> list[QueenAck]:
    """Read one ack. A single failure ends its lease: its client forgets the messages behind it."""
    ack = decode(_one, body, _shape_error)
    if ack.status == "failed":
        ack.status = "nack"
    return [ack]


def parse_batch(body: bytes, max_batch: int) -> list[QueenAck]:
    """Read a batch. The group of the batch is the group of each ack."""
    batch = decode(_many, body, _shape_error)
    if len(batch.acknowledgments) > max_batch:
        raise HttpError(413, f"at most {max_batch} acknowledgments fit into one request", "batch_too_large")
    for ack in batch.acknowledgments:
        ack.consumer_group = batch.consumer_group
    return batch.acknowledgments


def _shape_error(error: str) -> str:
    """Return Queen's text for a missing or malformed field."""
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


class QueenAcker:
    """Applies the acks of several requests by one call."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def __call__(self, requests: Sequence[list[QueenAck]]) -> list[list[AckResult]]:
        acks = [ack for request in requests for ack in request]
        good = [ack for ack in acks if is_sound(ack)]
        with tracing.span("ack", {"skep.requests": len(requests), "messaging.batch.message_count": len(acks)}):
            rows = iter(await self._rows(good) if good else ())
        return [
            [
                _result(index, ack, next(rows)) if is_sound(ack) else _refused(index, ack)
                for index, ack in enumerate(request)
            ]
            for request in requests
        ]

    async def _rows(self, acks: list[QueenAck]) -> list[tuple[Any, ...]]:
        if is_whole(acks):
            first = acks[0]
            transaction_ids = [ack.transaction_id for ack in acks]
            lease = {"partition_id": first.partition_id, "transaction_ids": transaction_ids, "lease": first.lease_id}
            ((queue, partition),) = await self._database.call(calls.ACK_LEASE, lease, _row)
            if queue is not None:
                return [(True, False, None, queue, partition, True, False)] * len(acks)
        return await self._database.call(calls.ACK, arguments(acks), _row)


def is_whole(acks: list[QueenAck]) -> bool:
    """Return true if these acks may complete one lease: the usual request, for which there is a cheaper call."""
    first = acks[0]
    return bool(first.lease_id) and all(
        ack.lease_id == first.lease_id
        and ack.partition_id == first.partition_id
        and STATUSES[ack.status] == "completed"
        for ack in acks
    )


def is_sound(ack: QueenAck) -> bool:
    """Return true if the database can read the ack. A malformed id is the id of no message."""
    return (
        ack.status in STATUSES
        and address.is_uuid(ack.partition_id)
        and (not ack.lease_id or address.is_uuid(ack.lease_id))
        and "\0" not in ack.transaction_id + (ack.consumer_group or "") + (ack.error or "")
    )


def arguments(acks: Sequence[QueenAck]) -> dict[str, Any]:
    return {
        "partition_ids": [ack.partition_id for ack in acks],
        "transaction_ids": [ack.transaction_id for ack in acks],
        "groups": [ack.consumer_group or QUEUE_MODE for ack in acks],
        "leases": [ack.lease_id or None for ack in acks],
        "statuses": [STATUSES[ack.status] for ack in acks],
        "errors": [ack.error or None for ack in acks],
    }


def _row(*columns: Any) -> tuple[Any, ...]:  # noqa: ANN401
    return columns


def _result(index: int, ack: QueenAck, row: tuple[Any, ...]) -> AckResult:
    return AckResult(index, ack.transaction_id, *row)


def _refused(index: int, ack: QueenAck) -> AckResult:
    if ack.status not in STATUSES:
        error = f"unknown status; it is one of {', '.join(STATUSES)}"
    elif not address.is_uuid(ack.partition_id):
        error = "Message not found"
    else:
        error = "Invalid or expired lease"
    return AckResult(
        index,
        ack.transaction_id,
        success=False,
        noop=False,
        error=error,
        queue_name=None,
        partition_name=None,
        lease_released=False,
        dlq=False,
    )


class Extension(msgspec.Struct):
    """The body of an extend. An empty body means a minute."""

    seconds: float = 60


class Extended(
    msgspec.Struct, rename={"lease": "leaseId", "expires_at": "expiresAt", "new_expires_at": "newExpiresAt"}
):
    """When the lease expires: three names for one time, because clients read one or another."""

    lease: str
    success: bool
    renewed: int
    expires_at: str | None
    new_expires_at: str | None
    lease_expires_at: str | None
    error: str | None


class QueenAcks(Merger[list[QueenAck], list[AckResult]]):
    """Merges the acks of this server."""

    def __init__(self, state: State) -> None:
        super().__init__(
            QueenAcker(state.database),
            weigh=len,
            max_weight=ACKS,
            parallel=2,
            max_pending=state.config.max_pending,
            merged=state.meter.merged("ack"),
        )


async def ack_one(call: Call) -> Reply:
    return await _ack(call, parse(await call.body()))


async def ack_batch(call: Call) -> Reply:
    return await _ack(call, parse_batch(await call.body(), call.state.config.max_batch))


async def _ack(call: Call, acks: list[QueenAck]) -> Reply:
    await require_on_partitions(call, "ack", {ack.partition_id for ack in acks})
    results = await call.state.part(QueenAcks)(acks) if acks else []
    call.state.meter.messages("acked", sum(result.success and not result.noop for result in results))
    return Reply(200, _encoder.encode(results))


async def extend(call: Call) -> Reply:
    lease = call.params["lease"]
    extension = await call.json(Extension, default=Extension())
    partitions, expires_at = 0, None
    if address.is_uuid(lease):
        await require_on_queues(call, "ack", calls.QUEUES_OF_LEASE, lease=lease)
        arguments = {"lease": lease, "seconds": extension.seconds}
        ((partitions, expires_at),) = await call.state.database.call(calls.EXTEND, arguments, _row)
    error = None if partitions else "Lease not found"
    return reply(Extended(lease, partitions > 0, partitions, expires_at, expires_at, expires_at, error))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/ack",
        action="ack",
        on="each",
        run=ack_one,
        summary="Acknowledge one message. The response is a list with one result.",
        body=QueenAck,
        answers={200: list[AckResult]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/ack/batch",
        action="ack",
        on="each",
        run=ack_batch,
        summary="Acknowledge many messages. Each has its own result.",
        body=AckBatch,
        answers={200: list[AckResult]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/lease/{lease}/extend",
        action="ack",
        on="each",
        run=extend,
        summary="Extend a lease. It is never shortened.",
        body=Extension,
        body_required=False,
        answers={200: Extended},
    ),
)
