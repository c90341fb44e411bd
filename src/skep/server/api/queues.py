"""Queues and their options. Times are seconds."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from skep.message import QueueStatus
from skep.server.api import calls
from skep.server.http.endpoint import Call, Endpoint, Reply, reply

Maybe = UnsetType


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """The options of a queue. null: no limit."""

    semantics: Literal["queue", "pub_sub", "mixed"] | Maybe = UNSET
    lease_time: float | Maybe = UNSET
    retry_limit: int | Maybe = UNSET
    retry_delay: float | Maybe = UNSET
    max_retry_delay: float | Maybe = UNSET
    retry_jitter: float | Maybe = UNSET
    delayed_processing: float | Maybe = UNSET
    window_buffer: float | Maybe = UNSET
    priority: int | Maybe = UNSET
    max_size: int | Maybe | None = UNSET
    max_payload_bytes: int | Maybe = UNSET
    dedup_window: float | Maybe | None = UNSET
    partial_failure: Literal["dead_letter", "retry"] | Maybe = UNSET
    concurrency: int | Maybe = UNSET
    retention_seconds: float | Maybe | None = UNSET
    completed_retention_seconds: float | Maybe | None = UNSET
    zero_subscriber_retention_seconds: float | Maybe | None = UNSET
    dead_group_grace_seconds: float | Maybe = UNSET
    block_without_subscribers: bool | Maybe = UNSET
    retain_until_archived: bool | Maybe = UNSET
    drop_idle_seconds: float | Maybe | None = UNSET
    lease_log_seconds: float | Maybe | None = UNSET
    encryption_enabled: bool | Maybe = UNSET


class QueueChange(msgspec.Struct):
    """The changes to a queue."""

    options: Options = msgspec.field(default_factory=Options)
    namespace: str | None = None
    task: str | None = None


async def list_queues(call: Call) -> Reply:
    return reply([queue for queue in await call.state.mq.queues() if call.identity.visible(queue.name)])


async def show(call: Call) -> Reply:
    return reply(await call.state.mq.queue(call.params["queue"]).status())


async def change(call: Call) -> Reply:
    return await _configure(call, calls.CHANGE_OPTIONS)


async def replace(call: Call) -> Reply:
    return await _configure(call, calls.REPLACE_OPTIONS)


async def _configure(call: Call, query: calls.Query) -> Reply:
    queue = call.params["queue"]
    wish = await call.json(QueueChange)
    arguments = {
        "queue": queue,
        "options": msgspec.json.encode(wish.options).decode(),
        "namespace": wish.namespace,
        "task": wish.task,
    }
    await call.state.database.value(query, arguments)
    call.state.sealed.forget()
    call.state.pushed([queue])  # delays may be shorter now
    return await show(call)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/queues",
        action="read",
        on="each",
        run=list_queues,
        summary="List queues with their sizes and options.",
        answers={200: list[QueueStatus]},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queues/{queue}",
        action="read",
        run=show,
        summary="Show the size and the options of a queue.",
        shared=True,
        answers={200: QueueStatus, 404: None},
    ),
    Endpoint(
        method="PATCH",
        path="/api/v1/queues/{queue}",
        action="configure",
        run=change,
        summary="Create a queue, or change the options that are given.",
        body=QueueChange,
        answers={200: QueueStatus},
    ),
    Endpoint(
        method="PUT",
        path="/api/v1/queues/{queue}",
        action="configure",
        run=replace,
        summary="Create a queue, or set all its options: those not given get their default.",
        body=QueueChange,
        answers={200: QueueStatus},
    ),
)
