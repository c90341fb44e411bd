"""Pop messages, with long polls that end when their client disconnects."""

from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from skep.client.aio.database import AsyncDatabase
from skep.message import QUEUE_MODE
from skep.scope import Scope
from skep.server.http.asgi import bad_request
from skep.server.http.endpoint import Call, Endpoint, Reply
from skep.server.http.members import Member
from skep.server.http.state import State
from skep.server.work import calls
from skep.server.work.waiters import PopOptions

MAX_WAIT = 110.0  # seconds
MAX_PARTITIONS = 1000
_encode = msgspec.json.Encoder().encode


class PopBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a pop of a queue. `wait` is in seconds; `partition` pops from that partition only."""

    group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    partition: str | None = None
    wait: float = 0
    lease_time: float | None = None
    auto_ack: bool = False
    subscription_mode: str | None = None
    subscription_from: str | None = None


class WidePopBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a pop of every queue of a namespace and/or task."""

    namespace: str | None = None
    task: str | None = None
    group: str = QUEUE_MODE
    batch: int = 1
    partitions: int = 1
    wait: float = 0
    lease_time: float | None = None
    auto_ack: bool = False
    subscription_mode: str | None = None
    subscription_from: str | None = None
    partition: None = None


class PoppedMessage(msgspec.Struct):
    """A message and its lease."""

    id: str
    queue: str
    partition: str
    offset: int
    payload: Any
    headers: dict[str, Any] | None
    transaction_id: str | None
    trace_id: str | None
    producer: str | None
    created_at: str
    attempt: int
    lease: str | None
    expires_at: str


class PoppedMessages(msgspec.Struct):
    """The messages of a pop, and the leases to acknowledge: one for each partition, none with auto_ack."""

    messages: list[PoppedMessage]
    leases: list[str]


class PopResult(NamedTuple):
    """The messages of one request as JSON, comma-separated."""

    request: int
    leases: list[UUID]
    messages: bytes
    sealed: bool
    size: int


class ApiPopper:
    """Pops messages in the shape of this API."""

    def __init__(self, database: AsyncDatabase) -> None:
        self._database = database

    async def pop(self, arguments: dict[str, Any]) -> list[PopResult]:
        return await self._database.call(calls.POP, arguments, PopResult, binary=True)

    async def release(self, popped: PopResult) -> None:
        if popped.leases:
            await self._database.value(calls.RELEASE, {"leases": popped.leases})


class ApiWaiters:
    """The requests of this API that wait for messages."""

    def __init__(self, state: State) -> None:
        self.waiters = state.wait_with(ApiPopper(state.database))

    async def drain(self) -> None:
        await self.waiters.close()


async def pop_queue(call: Call) -> Reply:
    body = await call.json(PopBody, default=PopBody())
    queue = call.params["queue"]
    if body.auto_ack:
        call.identity.require("ack", queue)
    return await _pop(call, body, queue=queue, partition=body.partition)


async def pop_wide(call: Call) -> Reply:
    body = await call.json(WidePopBody)
    if body.namespace is None and body.task is None:
        raise bad_request("give a namespace or a task")
    if body.auto_ack:
        call.identity.require("ack", None)
    return await _pop(call, body, namespace=body.namespace, task=body.task)


async def _pop(call: Call, body: PopBody | WidePopBody, **place: str | None) -> Reply:
    _check(call, body)
    scope = Scope(
        group=body.group,
        subscription_mode=body.subscription_mode,
        subscription_from=body.subscription_from,
        **place,
    )
    options = PopOptions(scope, body.lease_time, body.auto_ack)
    waiters = call.state.part(ApiWaiters).waiters
    popping = waiters.pop(options, body.batch, body.partitions, min(body.wait, MAX_WAIT))
    with _member(call, scope) as member:
        popped: PopResult | None = await (popping if body.wait == 0 else call.until_gone(popping))
    if popped is not None and call.gone:
        waiters.release(popped)
        popped = None
    if popped is None:
        return Reply(200, b'{"messages":[],"leases":[]}')
    member.messages += popped.size
    call.state.meter.messages("popped", popped.size)
    messages = call.state.keyring.open_all(popped.messages, "payload") if popped.sealed else popped.messages
    return Reply(200, b'{"messages":[%s],"leases":%s}' % (messages, _encode(popped.leases)))


def _check(call: Call, body: PopBody | WidePopBody) -> None:
    most = call.state.config.max_batch
    if not 1 <= body.batch <= most:
        raise bad_request(f"batch must be between 1 and {most}, got {body.batch}")
    if not 1 <= body.partitions <= MAX_PARTITIONS:
        raise bad_request(f"partitions must be between 1 and {MAX_PARTITIONS}, got {body.partitions}")
    if body.wait < 0:
        raise bad_request(f"wait must be 0 or more seconds, got {body.wait:g}")


def _member(call: Call, scope: Scope) -> Member:
    address = (call.scope["client"] or ("",))[0]
    return call.state.members.of(scope.queue or "", scope.group, address, call.identity.subject)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/queues/{queue}/pop",
        action="pop",
        run=pop_queue,
        summary="Lease messages of a queue. auto_ack completes them at once, which needs the right to ack.",
        body=PopBody,
        body_required=False,
        answers={200: PoppedMessages},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/pop",
        action="pop",
        run=pop_wide,
        summary="Lease messages of every queue of a namespace and/or task.",
        body=WidePopBody,
        answers={200: PoppedMessages},
    ),
)
