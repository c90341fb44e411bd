"""Push and acknowledge in one transaction."""

from typing import Any

import msgspec

from skep.server.api.leases import AckItem
from skep.server.api.push import PushMessage, read_messages
from skep.server.http.access import require_on_queues
from skep.server.http.asgi import bad_request, traceparent
from skep.server.http.endpoint import Call, Endpoint, Reply
from skep.server.work import address, calls
from skep.server.work.push import PushItem, prepare, seal, trace


class PushInto(PushMessage, forbid_unknown_fields=True, kw_only=True):
    """A message to push, and its queue."""

    queue: str


class Operation(msgspec.Struct, forbid_unknown_fields=True):
    """Either a push or an ack."""

    push: PushInto | None = None
    ack: AckItem | None = None


class Operations(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a transaction."""

    operations: list[Operation]


class TransactionResult(msgspec.Struct):
    """The places of the messages, in the order of the pushes."""

    pushed: list[dict[str, Any]]


async def run_transaction(call: Call) -> Reply:
    operations = (await call.json(Operations)).operations
    for number, one in enumerate(operations):
        if (one.push is None) == (one.ack is None):
            raise bad_request(f"item {number}: an operation has either push or ack")
    items = [item for one in operations if one.push for item in read_messages(call, one.push.queue, [one.push])]
    acks = [one.ack for one in operations if one.ack]
    await _require(call, items, acks)
    trace(items, traceparent(call.scope))
    await seal(items, call.state.sealed, call.state.keyring)
    text = ",".join([*(f'{{"ack":{_ack(ack)}}}' for ack in acks), *(f'{{"push":{_push(item)}}}' for item in items)])
    stored = await call.state.database.call(calls.TRANSACTION, {"operations": f"[{text}]"}, str)
    call.state.meter.messages("pushed", len(items))
    call.state.meter.messages("acked", sum(ack.status == "completed" for ack in acks))
    call.state.pushed({item.queue for item in items})
    return Reply(200, b'{"pushed":[%s]}' % ",".join(stored).encode())


async def _require(call: Call, items: list[PushItem], acks: list[AckItem]) -> None:
    for queue in {item.queue for item in items}:
        call.identity.require("push", queue)
    for number, ack in enumerate(acks):
        if not address.is_uuid(ack.lease) or (ack.id is not None and not address.is_uuid(ack.id)):
            raise bad_request(f"ack {number}: lease and id must be UUIDs")
    await require_on_queues(call, "ack", calls.QUEUES_OF_LEASES, leases=[ack.lease for ack in acks])


def _push(item: PushItem) -> str:
    return prepare([item]).encoded


def _ack(ack: AckItem) -> str:
    fields = {name: value for name, value in msgspec.structs.asdict(ack).items() if value is not None}
    return msgspec.json.encode(fields).decode()


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/transactions",
        action="ack",
        on="each",
        run=run_transaction,
        summary="Push messages and acknowledge others, all or nothing. One stale lease refuses everything.",
        body=Operations,
        answers={200: TransactionResult},
    ),
)
