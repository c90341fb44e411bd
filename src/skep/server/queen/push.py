"""Pushing: POST /api/v1/push, and pushes and answers as one in POST /api/v1/transaction."""

import msgspec

from skep.server.http.access import require_on_partitions
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.queen import transaction
from skep.server.work import push, tracing


async def push_items(call: Call) -> Reply:
    items = push.parse(await call.body(), call.identity.subject, call.state.config.max_batch)
    if not items:
        return Reply(201, b"[]")
    queues = {item.queue for item in items}
    for queue in queues:
        call.identity.require("push", queue)
    traceparent = tracing.traceparent(call.scope)
    push.trace(items, traceparent)
    await seal(call, items, queues)
    prepared = push.prepare(items, traceparent)
    if call.state.maintenance.in_the_way and await call.state.maintenance.hold(prepared):
        return reply(push.held(items), 201)
    stored = await call.state.push(prepared)
    call.state.pushed(queues)
    return Reply(201, push.encode(stored))


async def seal(call: Call, items: list[push.NewItem], queues: set[str]) -> None:
    """Encrypt what goes to encrypted queues."""
    for queue in queues & await call.state.sealed.names():
        for item in items:
            if item.queue == queue:
                payload, headers = call.state.keyring.seal(push.text_of(item), queue)
                item.payload = msgspec.Raw(payload)
                item.headers = (item.headers or {}) | headers


async def run_transaction(call: Call) -> Reply:
    max_batch = call.state.config.max_batch
    asked = transaction.parse(await call.body(), max_batch)
    items = push.checked(transaction.items_of(asked), call.identity.subject, max_batch)
    queues = {item.queue for item in items}
    for queue in queues:
        call.identity.require("push", queue)
    await require_on_partitions(call, "ack", {answer.partition_id for answer in transaction.answers_of(asked)})
    push.trace(items, tracing.traceparent(call.scope))
    await seal(call, items, queues)
    outcome = await transaction.run(call.state.database, asked, items)
    if outcome["success"]:
        call.state.meter.messages("pushed", len(items))
        call.state.meter.messages("acked", len(outcome["results"]) - len(items))
        call.state.pushed(queues)
    return reply(outcome)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/push",
        action="push",
        on="each",
        run=push_items,
        summary="Store messages. The answer has one element for each item, in order.",
        body=push.Body,
        answers={201: (list[push.Stored], list[push.Held])},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/transaction",
        action="ack",
        on="each",
        run=run_transaction,
        summary="Push and acknowledge, all or nothing.",
        body=transaction.Body,
        answers={200: transaction.Outcome},
    ),
)
