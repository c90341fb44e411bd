"""Traces: notes of consumers about messages, by message and by name."""

import os
import platform

import msgspec

from skep.message import QUEUE_MODE
from skep.server.http import lists
from skep.server.http.access import require_on_partitions
from skep.server.http.asgi import bad_request
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.http.lists import PAGE
from skep.server.queen import calls
from skep.server.work import address

MOST_NAMES = 32
NULL = msgspec.Raw(b"null")


class Trace(msgspec.Struct, rename="camel"):
    """What is posted."""

    transaction_id: str | None = None
    partition_id: str | None = None
    data: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    consumer_group: str | None = None
    event_type: str | None = None
    trace_names: str | list[str] | None = None

    def names(self) -> list[str]:
        given = [self.trace_names] if isinstance(self.trace_names, str) else self.trace_names or []
        return [name for name in given if name]


async def write(call: Call) -> Reply:
    trace = await call.json(Trace)
    if not trace.transaction_id or not trace.partition_id:
        raise bad_request("transactionId and partitionId are required")
    if bytes(trace.data).strip() == b"null":
        raise bad_request("data is required")
    if len(trace.names()) > MOST_NAMES:
        raise bad_request(f"a trace has at most {MOST_NAMES} names")
    written: str | None = None
    if address.is_uuid(trace.partition_id):
        await require_on_partitions(call, "ack", [trace.partition_id])
        written = await call.state.admin.value(calls.TRACE, _arguments(trace))
    if written is None:
        return reply({"success": False, "error": "Message not found", "code": "not_found"}, 404)
    return reply({"success": True, "traceId": written}, 201)


def _arguments(trace: Trace) -> dict[str, object]:
    try:
        data = bytes(trace.data).decode()
    except UnicodeDecodeError:
        raise bad_request("Invalid JSON: not UTF-8") from None
    return {
        "partition_id": trace.partition_id,
        "transaction_id": trace.transaction_id,
        "group": trace.consumer_group or QUEUE_MODE,
        "event_type": trace.event_type or "info",
        "data": data,
        "names": trace.names(),
        "worker": f"{platform.node()}:{os.getpid()}",
    }


async def of_message(call: Call) -> Reply:
    partition = call.params["partition"]
    if not address.is_uuid(partition):
        return reply({"traces": []})
    await require_on_partitions(call, "read", [partition])
    return await lists.ask(call, calls.TRACES_OF, partition_id=partition, transaction_id=call.params["transaction"])


async def by_name(call: Call) -> Reply:
    arguments = {"name": call.params["name"], "visible": await lists.visible(call)}
    answer = await lists.ask_text(call, calls.TRACES_NAMED, **arguments, **lists.page(call, 100))
    return Reply(200, lists.open_rows(call, answer, "traces", "message_payload"))


async def names(call: Call) -> Reply:
    return await lists.ask(call, calls.TRACE_NAMES, visible=await lists.visible(call), **lists.page(call, 50))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/traces",
        action="ack",
        on="each",
        run=write,
        summary="Write something down about a message.",
        body=Trace,
        answers={201: dict[str, str]},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/traces/names",
        action="read",
        on="each",
        run=names,
        summary="List the names of traces, those seen last first.",
        query=PAGE,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/traces/by-name/{name...}",
        action="read",
        on="each",
        run=by_name,
        summary="List traces that have a name, newest first, with the payload of their messages.",
        query=PAGE,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/traces/{partition}/{transaction...}",
        action="read",
        on="each",
        run=of_message,
        summary="List the traces of a message, oldest first.",
    ),
)
