"""POST /api/v1/transaction: pushes and answers, all of them or none."""

from typing import Any, Literal
from uuid import UUID, uuid4

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.errors import Conflict, PayloadTooLarge, SkepError, StaleLease
from skep.server.http.asgi import HttpError, bad_request, decode, told
from skep.server.work import ack, address, calls, push
from skep.server.work.ack import Answer


class AckOperation(Answer, rename="camel", tag="ack"):
    """An answer inside a transaction."""


class PushOperation(msgspec.Struct, tag="push"):
    """Messages inside a transaction."""

    items: list[push.BareItem]


class Body(msgspec.Struct, rename="camel"):
    """What is posted."""

    operations: list[AckOperation | PushOperation]
    required_leases: list[str] = []
    kv: list[Any] = []
    timers: list[Any] = []


class Outcome(msgspec.Struct, rename="camel"):
    """What became of a transaction; without success nothing happened, and `reason` says why."""

    transaction_id: str
    success: bool
    results: list[dict[str, Any]]
    error: str | None = None
    reason: str | None = None


_decoder = msgspec.json.Decoder(Body)
Reason = Literal["bad_request", "duplicate", "ack_rejected", "payload_too_large"]


def parse(body: bytes, max_batch: int) -> Body:
    """Read and check a body. Old clients name leases beside the operations: a single one is that of each answer."""
    transaction = decode(_decoder, body, _said)
    if not transaction.operations:
        raise bad_request("operations array cannot be empty")
    if len(transaction.operations) > max_batch:
        raise HttpError(413, f"at most {max_batch} operations fit into one request", "batch_too_large")
    if transaction.kv or transaction.timers:
        raise HttpError(400, "kv and timers are not supported", "unsupported")
    if len(transaction.required_leases) == 1:
        for answer in answers_of(transaction):
            answer.lease_id = answer.lease_id or transaction.required_leases[0]
    return transaction


def _said(error: str) -> str:
    return "operations array required" if "`operations`" in error or error.endswith("`$.operations`") else error


def answers_of(transaction: Body) -> list[AckOperation]:
    return [operation for operation in transaction.operations if isinstance(operation, AckOperation)]


def items_of(transaction: Body) -> list[push.BareItem]:
    return [item for each in transaction.operations if isinstance(each, PushOperation) for item in each.items]


async def run(database: AsyncDatabase, transaction: Body, items: list[push.NewItem]) -> dict[str, Any]:
    """Carry it out; a refusal is an answer, not an error: nothing happened, and `reason` says why."""
    answers = answers_of(transaction)
    outcome: dict[str, Any] = {"transactionId": str(uuid4())}
    try:
        for answer in answers:
            _check(answer, transaction.required_leases)
        arguments = ack.arguments(answers) | {"messages": f"[{push.prepare(items).encoded}]"}
        if transaction.required_leases and not all(answer.lease_id for answer in answers):
            arguments["leases"] = await _lend(database, arguments, transaction.required_leases)
        arguments["statuses"] = ["completed" if status == "completed" else "dlq" for status in arguments["statuses"]]
        ((dlq, partition_ids, offsets, delayed),) = await database.call(calls.TRANSACTION, arguments, lambda *row: row)
    except SkepError as error:
        if error.retryable:
            raise
        return outcome | {"success": False, "error": told(error), "reason": _reason(error), "results": []}
    places = zip(items, [False] * len(items), partition_ids or [], offsets or [], strict=True)
    return outcome | {"success": True, "results": _results(transaction, push.all_stored(places, delayed), dlq)}


def _check(answer: Answer, required: list[str]) -> None:
    if not ack.is_sound(answer) or answer.status == "retry":
        error = f"unknown status {answer.status!r}" if answer.status not in ack.STATUSES else "Message not found"
        raise StaleLease(f"ACK operation failed: {error}")
    if required and answer.lease_id and answer.lease_id not in required:
        raise StaleLease("ACK operation failed: its lease is not among requiredLeases")


async def _lend(database: AsyncDatabase, arguments: dict[str, Any], required: list[str]) -> list[UUID]:
    """Find out for which of these leases each answer counts that names none; that it still holds is checked later."""
    leases = [lease for lease in required if address.is_uuid(lease)]
    return await database.value(calls.LEND, arguments | {"required": leases})


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


def _results(transaction: Body, pushed: list[push.Stored], dlq: list[bool]) -> list[dict[str, Any]]:
    """One result for each answer and each pushed item, in the order they were sent."""
    stored = iter(pushed)
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
            results += [_pushed(next(stored)) for _ in operation.items]
    return [{"index": index} | result for index, result in enumerate(results)]


def _pushed(stored: push.Stored) -> dict[str, Any]:
    pushed = {
        "type": "push",
        "success": True,
        "transactionId": stored.transaction_id,
        "messageId": stored.message_id,
        "queueName": stored.queue,
    }
    if stored.due_at is not None:
        return pushed | {"status": "delayed", "dueAt": stored.due_at}
    return pushed | {"partitionId": stored.partition_id, "offset": stored.offset}
