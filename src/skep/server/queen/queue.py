"""Queues: configure and delete."""

from typing import Any, Literal

import msgspec

from skep.server.http.asgi import bad_request
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.queen import calls


class Configuration(msgspec.Struct):
    """The options of a queue in Queen's names. Options not given stay, or, with mode "replace", get their default."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None
    options: dict[str, Any] = {}
    mode: Literal["merge", "replace"] = "merge"


class Configured(msgspec.Struct, rename="camel"):
    """A queue as it is now; the options are Queen's."""

    configured: bool
    queue_id: str
    queue: str
    namespace: str
    task: str
    options: dict[str, Any]
    partition_id: str


class Deleted(msgspec.Struct):
    """A queue that is no more; `existed`: it was there."""

    deleted: bool
    queue: str
    existed: bool


async def configure(call: Call) -> Reply:
    asked = await call.json(Configuration)
    if not asked.queue:
        raise bad_request("queue is required")
    call.identity.require("configure", asked.queue)
    arguments = {
        "queue": asked.queue,
        "options": msgspec.json.encode(asked.options).decode(),
        "namespace": asked.namespace,
        "task": asked.task,
        "replace": asked.mode == "replace",
    }
    stored: str = await call.state.database.value(calls.CONFIGURE, arguments)
    call.state.sealed.forget()
    call.state.pushed([asked.queue])  # delays may be shorter now
    return Reply(201, stored.encode())


async def delete(call: Call) -> Reply:
    queue = call.params["queue"]
    existed = await call.state.mq.delete_queue(queue)
    return reply(Deleted(deleted=True, queue=queue, existed=existed))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/configure",
        action="configure",
        on="each",
        run=configure,
        summary="Create a queue, or change its options.",
        body=Configuration,
        answers={201: Configured},
    ),
    Endpoint(
        method="DELETE",
        path="/api/v1/resources/queues/{queue}",
        action="admin",
        run=delete,
        summary="Delete a queue with everything in it but its dead letters.",
        answers={200: Deleted},
    ),
)
