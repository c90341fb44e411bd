"""POST /api/v1/transaction: pushes and acks, all or nothing."""

from typing import Any, Literal
from uuid import UUID, uuid4

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.errors import Conflict, PayloadTooLarge, SkepError, StaleLease
from skep.server.http.access import require_on_partitions
from skep.server.http.asgi import HttpError, bad_request, decode, told, traceparent
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.queen import ack, calls
from skep.server.queen.ack import QueenAck
from skep.server.queen.push import BareItem, Stored, read_items, stored
from skep.server.work import address
from skep.server.work.push import Pushed, PushItem, places, prepare, seal, trace


class AckOperation(QueenAck, rename="camel", tag="ack"):
    """An ack inside a transaction."""


class PushOperation(msgspec.Struct, tag="push"):
    """Messages inside a transaction."""

    items: list[BareItem]


class TransactionBody(msgspec.Struct, rename="camel"):
    """The body of a transaction."""

    operations: list[AckOperation | PushOperation]
    required_leases: list[str] = []
    kv: list[Any] = []
    timers: list[Any] = []


class Outcome(msgspec.Struct, rename="camel"):
    """The result of a transaction. Without success nothing happened, and `reason` says why."""

    transaction_id: str
    success: bool
    results: list[dict[str, Any]]
    error: str | None = None
    reason: str | None = None


_decoder = msgspec.json.Decoder(TransactionBody)
Reason = Literal["bad_request", "duplicate", "ack_rejected", "payload_too_large"]


def parse(body: bytes, max_batch: int) -> TransactionBody:
    """Read and check a body. Old clients name leases beside the operations: a single one is the lease of each ack."""
    transaction = decode(_decoder, body, _shape_error)
    if not transaction.operations:
        raise bad_request("operations array cannot be empty")
    if len(transaction.operations) > max_batch:
        raise HttpError(413, f"at most {max_batch} operations fit into one request", "batch_too_large")
    if transaction.kv or transaction.timers:
        raise HttpError(400, "kv and timers are not supported", "unsupported")
    if len(transaction.required_leases) == 1:
        for one in acks_of(transaction):
            one.lease_id = one.lease_id or transaction.required_leases[0]
    return transaction


def _shape_error(error: str) -> str:
    return "operations array required" if "`operations`" in error or error.endswith("`$.operations`") else error


def acks_of(transaction: TransactionBody) -> list[AckOperation]:
    return [operation for operation in transaction.operations if isinstance(operation, AckOperation)]


def items_of(transaction: TransactionBody) -> list[BareItem]:
    return [item for each in transaction.operations if isinstance(each, PushOperation) for item in each.items]


async def run(database: AsyncDatabase, transaction: TransactionBody, items: list[PushItem]) -> dict[str, Any]:
    """Run a transaction. If it is refused, nothing happened, and `reason` says why."""
    acks = acks_of(transaction)
    outcome: dict[str, Any] = {"transactionId": str(uuid4())}
    try:
        for one in acks:
            _check(one, transaction.required_leases)
        arguments = ack.arguments(acks) | {"messages": f"[{prepare(items).encoded}]"}
        if transaction.required_leases and not all(one.lease_id for one in acks):
            arguments["leases"] = await _find_leases(database, arguments, transaction.required_leases)
        arguments["statuses"] = ["completed" if status == "completed" else "dlq" for status in arguments["statuses"]]
        ((dlq, partition_ids, offsets, delayed),) = await database.call(calls.TRANSACTION, arguments, lambda *row: row)
    except SkepError as error:
        if error.retryable:
            raise
        return outcome | {"success": False, "error": told(error), "reason": _reason(error), "results": []}
    pushed = Pushed([False] * len(items), partition_ids or [], offsets or [], places(delayed, 0, len(items)))
    return outcome | {"success": True, "results": _results(transaction, list(stored(items, pushed)), dlq)}


def _check(one: QueenAck, required: list[str]) -> None:
    if not ack.is_sound(one) or one.status == "retry":
        error = f"unknown status {one.status!r}" if one.status not in ack.STATUSES else "Message not found"
        raise StaleLease(f"ACK operation failed: {error}")
    if required and one.lease_id and one.lease_id not in required:
        raise StaleLease("ACK operation failed: its lease is not among requiredLeases")


async def _find_leases(database: AsyncDatabase, arguments: dict[str, Any], required: list[str]) -> list[UUID]:
    """Return the lease of each ack. Without a lease id it is the required lease that holds the message, if any."""
    leases = [lease for lease in required if address.is_uuid(lease)]
    return await database.value(calls.FIND_LEASES, arguments | {"required": leases})


def _reason(error: SkepError) -> Reason:
    match error:
        case StaleLease():
            return "ack_rejected"
        case Conflict():
            return "duplicate"
        case PayloadTooLarge():
            return "payload_too_large"
        case _:
            return "bad_request"


def _results(transaction: TransactionBody, pushed: list[Stored], dlq: list[bool]) -> list[dict[str, Any]]:
    """Return one result for each ack and each pushed item, in the order of the request."""
    results_of_pushes = iter(pushed)
    dead = iter(dlq or [])
    results: list[dict[str, Any]] = []
    for operation in transaction.operations:
        if isinstance(operation, AckOperation):
            results.append(
                {
                    "type": "ack",
                    "success": True,
                    "transactionId": operation.transaction_id,
                    "error": None,
                    "dlq": next(dead),
                }
            )
        else:
            results += [_pushed(next(results_of_pushes)) for _ in operation.items]
    return [{"index": index} | result for index, result in enumerate(results)]


def _pushed(result: Stored) -> dict[str, Any]:
    pushed = {
        "type": "push",
        "success": True,
        "transactionId": result.transaction_id,
        "messageId": result.message_id,
        "queueName": result.queue,
    }
    if result.due_at is not None:
        return pushed | {"status": "delayed", "dueAt": result.due_at}
    return pushed | {"partitionId": result.partition_id, "offset": result.offset}


async def run_transaction(call: Call) -> Reply:
    max_batch = call.state.config.max_batch
    transaction = parse(await call.body(), max_batch)
    items = read_items(items_of(transaction), call.identity.subject, max_batch)
    queues = {item.queue for item in items}
    for queue in queues:
        call.identity.require("push", queue)
    await require_on_partitions(call, "ack", {one.partition_id for one in acks_of(transaction)})
    trace(items, traceparent(call.scope))
    await seal(items, call.state.sealed, call.state.keyring)
    outcome = await run(call.state.database, transaction, items)
    if outcome["success"]:
        call.state.meter.messages("pushed", len(items))
        call.state.meter.messages("acked", len(outcome["results"]) - len(items))
        call.state.pushed(queues)
    return reply(outcome)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/transaction",
        action="ack",
        on="each",
        run=run_transaction,
        summary="Push and acknowledge, all or nothing.",
        body=TransactionBody,
        answers={200: Outcome},
    ),
)
