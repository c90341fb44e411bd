"""The routes of Queen's streams: register one, run a cycle, read its state."""

from skep.server.http.access import require_on_partitions
from skep.server.http.asgi import traceparent
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.queen import calls, stream
from skep.server.queen.push import read_items
from skep.server.work.push import seal, trace


async def register(call: Call) -> Reply:
    asked = stream.parse_query(await call.body())
    call.identity.require("pop", asked.source_queue)
    if not call.identity.allows("pop", None):  # a stream of this name may belong to someone else
        for queue in await call.state.database.call(calls.STREAM_SOURCE, {"name": asked.name}, str):
            call.identity.require("pop", queue)
    stored = await stream.register(call.state.database, asked)
    return reply(stored, 200 if stored.success else 409)


async def cycle(call: Call) -> Reply:
    asked = stream.parse_cycle(await call.body())
    items = read_items(list(asked.push_items), call.identity.subject, call.state.config.max_batch)
    queues = {item.queue for item in items}
    for queue in queues:
        call.identity.require("push", queue)
    await require_on_partitions(call, "ack", {asked.partition_id})
    trace(items, traceparent(call.scope))
    await seal(items, call.state.sealed, call.state.keyring)
    done = await stream.cycle(call.state.database, asked, items)
    if done.success:
        call.state.meter.messages("pushed", sum(one.status == "queued" for one in done.push_results or ()))
        call.state.meter.messages("acked", done.ack_result.count if done.ack_result else 0)
        call.state.pushed({*queues, done.queue_name})  # released messages can be popped now
    return reply(done)


async def state(call: Call) -> Reply:
    asked = stream.parse_state_query(await call.body())
    await require_on_partitions(call, "read", {asked.partition_id})
    return Reply(200, await stream.state(call.state.database, asked))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/streams/v1/queries",
        action="pop",
        on="each",
        run=register,
        summary="Register a stream. Another configuration under the same name is refused, or resets its state.",
        body=stream.StreamQuery,
        answers={200: stream.Registered, 409: stream.Registered},
    ),
    Endpoint(
        method="POST",
        path="/streams/v1/cycle",
        action="ack",
        on="each",
        run=cycle,
        summary="Change state, push and acknowledge for one source partition, all or nothing.",
        body=stream.Cycle,
        answers={200: stream.CycleResult},
    ),
    Endpoint(
        method="POST",
        path="/streams/v1/state/get",
        action="read",
        on="each",
        run=state,
        summary="Read the state of a stream for one source partition.",
        body=stream.StateQuery,
        answers={200: stream.StateRows},
    ),
)
