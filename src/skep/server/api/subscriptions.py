"""Subscriptions: start positions, status and retry policy of groups."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from skep.client.explain import StartExplanation
from skep.message import DEFAULT_PARTITION, GroupStatus, Subscription
from skep.server.http.endpoint import LAST, Call, Endpoint, Param, Reply, reply
from skep.server.http.grants import Action


class NewSubscription(msgspec.Struct):
    """A subscription of a group to a queue, one partition of it, or a namespace and/or task."""

    group: str
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    mode: str | None = None
    start_from: str | int | None = None
    backfill: bool | None = None
    heartbeat_interval: float | None = None
    heartbeat_timeout: float | None = None
    miss_threshold: Annotated[int, msgspec.Meta(ge=1, le=LAST)] | None = None
    retry_limit: Annotated[int, msgspec.Meta(ge=0, le=LAST)] | None = None
    retry_delay: float | None = None
    max_retry_delay: float | None = None
    retry_jitter: float | None = None


class RetryOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The retry policy of a group. null: the option of the queue."""

    retry_limit: Annotated[int, msgspec.Meta(ge=0, le=LAST)] | UnsetType | None = UNSET
    retry_delay: float | UnsetType | None = UNSET
    max_retry_delay: float | UnsetType | None = UNSET
    retry_jitter: float | UnsetType | None = UNSET


class GroupChange(msgspec.Struct):
    """The changes to subscriptions of a group: to a queue, to a namespace and/or task, or all."""

    options: RetryOptions
    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


class GroupScope(msgspec.Struct):
    """The subscriptions of a group to a queue, to a namespace and/or task, or all."""

    queue: str | None = None
    namespace: str | None = None
    task: str | None = None


class Orphans(msgspec.Struct):
    """Messages older than this many seconds count as completed."""

    queue: str
    older_than_seconds: float


class Released(msgspec.Struct):
    """The number of messages that no longer wait for the group."""

    messages: int


async def list_subscriptions(call: Call) -> Reply:
    found = await call.state.mq.subscriptions(call.text("group"), call.text("queue"))
    return reply([each for each in found if _visible(call, each.queue)])


def _visible(call: Call, queue: str | None) -> bool:
    return call.identity.allows("read", None) if queue is None else call.identity.visible(queue)


async def subscribe(call: Call) -> Reply:
    wish = await call.json(NewSubscription)
    call.identity.require("pop", wish.queue)
    stored = await call.state.mq.subscribe(
        wish.group,
        wish.queue,
        partition=wish.partition,
        namespace=wish.namespace,
        task=wish.task,
        mode=wish.mode,
        start_from=wish.start_from,
        backfill=wish.backfill,
        heartbeat_interval=wish.heartbeat_interval,
        heartbeat_timeout=wish.heartbeat_timeout,
        miss_threshold=wish.miss_threshold,
        retry_limit=wish.retry_limit,
        retry_delay=wish.retry_delay,
        max_retry_delay=wish.max_retry_delay,
        retry_jitter=wish.retry_jitter,
    )
    return reply(stored)


async def configure(call: Call) -> Reply:
    wish = await call.json(GroupChange)
    call.identity.require("pop", wish.queue)
    changed = await call.state.mq.configure_group(
        call.params["group"],
        msgspec.to_builtins(wish.options),
        wish.queue,
        namespace=wish.namespace,
        task=wish.task,
    )
    return reply(changed)


async def explain_start(call: Call) -> Reply:
    group, queue, partition = call.params["group"], call.params["queue"], call.text("partition") or DEFAULT_PARTITION
    return reply(await call.state.mq.explain_start(group, queue, partition))


def _changing(verb: str, action: Action) -> Callable[[Call], Awaitable[Reply]]:
    async def change(call: Call) -> Reply:
        which = await call.json(GroupScope, default=GroupScope())
        call.identity.require(action, which.queue)
        change = getattr(call.state.mq, verb)
        changed: list[Subscription] = await change(
            call.params["group"], which.queue, namespace=which.namespace, task=which.task
        )
        call.state.wake(None if which.queue is None else [which.queue])
        return reply(changed)

    return change


async def remove(call: Call) -> Reply:
    queue = call.text("queue")
    call.identity.require("admin", queue)
    return reply(Released(await call.state.mq.cancel_group(call.params["group"], queue)))


async def force_complete(call: Call) -> Reply:
    wish = await call.json(Orphans)
    call.identity.require("admin", wish.queue)
    older_than = timedelta(seconds=min(max(wish.older_than_seconds, -1), 1e9))
    return reply(Released(await call.state.mq.force_complete(call.params["group"], wish.queue, older_than)))


async def groups(call: Call) -> Reply:
    found = await call.state.mq.groups(call.text("group"), call.text("queue"))
    return reply([each for each in found if call.identity.visible(each.queue)])


def _verb(verb: str, action: Action, summary: str) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/api/v1/subscriptions/{{group}}/{verb}",
        action=action,
        on="each",
        run=_changing(verb, action),
        summary=summary,
        body=GroupScope,
        body_required=False,
        answers={200: list[Subscription], 404: None, 409: None},
    )


_WHOSE = (Param("group", "string", "Of this group."), Param("queue", "string", "To this queue."))

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/subscriptions",
        action="read",
        on="each",
        run=list_subscriptions,
        summary="List subscriptions.",
        query=_WHOSE,
        answers={200: list[Subscription]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/subscriptions",
        action="pop",
        on="each",
        run=subscribe,
        summary="Subscribe a group, if it is not subscribed yet. Returns the stored subscription.",
        body=NewSubscription,
        answers={200: Subscription},
    ),
    Endpoint(
        method="PATCH",
        path="/api/v1/subscriptions/{group}",
        action="pop",
        on="each",
        run=configure,
        summary="Change the retry policy of a group. Options that are not given stay.",
        body=GroupChange,
        answers={200: list[Subscription], 404: None, 409: None},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/subscriptions/{group}/start/{queue}",
        action="read",
        run=explain_start,
        summary="Explain where a group starts in a partition: the subscription that decides, and the offset.",
        query=(Param("partition", "string", "The partition; Default if it is not given."),),
        answers={200: StartExplanation},
    ),
    _verb("pause", "seek", "Deliver nothing to a group for now; what it is owed stays owed."),
    _verb("resume", "seek", "Go on where a group was paused, or died."),
    _verb("cancel", "seek", "End a subscription: nothing is owed to it any more."),
    _verb("heartbeat", "pop", "Give a sign of life."),
    Endpoint(
        method="POST",
        path="/api/v1/subscriptions/{group}/force-complete",
        action="admin",
        on="each",
        run=force_complete,
        summary="Count old messages as completed by a group.",
        body=Orphans,
        answers={200: Released, 404: None},
    ),
    Endpoint(
        method="DELETE",
        path="/api/v1/subscriptions/{group}",
        action="admin",
        on="each",
        run=remove,
        summary="Delete a group from a queue, or everywhere. Retention no longer waits for it.",
        query=(Param("queue", "string", "From this queue only."),),
        answers={200: Released, 404: None, 409: None},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/groups",
        action="read",
        on="each",
        run=groups,
        summary="Show the status, lag, last heartbeat and missed messages of groups.",
        shared=True,
        query=_WHOSE,
        answers={200: list[GroupStatus]},
    ),
)
