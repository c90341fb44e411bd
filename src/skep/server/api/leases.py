"""Acknowledge, fail, dead-letter, release and extend leases."""

from collections.abc import Sequence

import msgspec

from skep.errors import StaleLease
from skep.server.http.access import require_on_queues
from skep.server.http.asgi import HttpError, bad_request
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.http.state import State
from skep.server.work import address, calls
from skep.server.work.ack import Acker, AckRequest, Status
from skep.server.work.merge import Merger

ACKS = 5_000  # of merged requests in one call
HINT = "It was acknowledged already, or it expired, was released, or the group was moved or deleted"


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages to acknowledge, by id. Without ids: every message of the lease that has no ack yet."""

    ids: list[str] = []


class FailBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that failed. `retry_after`: seconds until they are retried. `alone`: each is retried by itself."""

    error: str = "failed"
    ids: list[str] = []
    retry_after: float | None = None
    alone: bool = False


class DeadLetterBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages to move to the dead letters."""

    error: str = "dead-lettered"
    ids: list[str] = []


class ReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """`delay`: seconds until the messages are delivered again."""

    delay: float | None = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds from now until the lease expires. A lease is never shortened."""

    seconds: float = 60


class LeaseExtended(msgspec.Struct):
    """When the lease expires now."""

    expires_at: str


class AckItem(msgspec.Struct, forbid_unknown_fields=True):
    """One of many acks. Without an id it is for every message of the lease that has no ack yet."""

    lease: str
    id: str | None = None
    status: Status = "completed"
    error: str | None = None
    delay: float | None = None


class AckItems(msgspec.Struct, forbid_unknown_fields=True):
    """The body of many acks."""

    acks: list[AckItem]


class Applied(msgspec.Struct):
    """For each ack whether it was applied. A stale lease does not affect the others."""

    applied: list[bool]


class ApiAcks(Merger[Sequence[AckRequest], list[bool]]):
    """Merges the acks of this server."""

    def __init__(self, state: State) -> None:
        super().__init__(
            Acker(state.database),
            weigh=len,
            max_weight=ACKS,
            parallel=2,
            max_pending=state.config.max_pending,
            merged=state.meter.merged("ack"),
        )


async def ack(call: Call) -> Reply:
    body = await call.json(AckBody, default=AckBody())
    return await _apply(call, body.ids, "completed")


async def fail(call: Call) -> Reply:
    body = await call.json(FailBody, default=FailBody())
    if body.alone and not body.ids:
        raise bad_request("alone needs ids: only a message can fail alone, not a whole lease")
    return await _apply(call, body.ids, "failed_alone" if body.alone else "failed", body.error, body.retry_after)


async def dead_letter(call: Call) -> Reply:
    body = await call.json(DeadLetterBody, default=DeadLetterBody())
    return await _apply(call, body.ids, "dead_letter", body.error)


async def release(call: Call) -> Reply:
    body = await call.json(ReleaseBody, default=ReleaseBody())
    return await _apply(call, [], "release", delay=body.delay)


async def _apply(
    call: Call, ids: list[str], status: Status, error: str | None = None, delay: float | None = None
) -> Reply:
    """Apply the same ack to messages of the lease in the path. Raise if it counts for none of them."""
    lease = call.params["lease"]
    acks = [AckRequest(lease, id_, status, error, delay) for id_ in ids or [None]]
    applied = await _run(call, acks)
    if not any(applied):
        raise StaleLease(f"lease {lease} is over, or the messages are not in it", hint=HINT)
    return reply(Applied(applied))


async def ack_many(call: Call) -> Reply:
    body = await call.json(AckItems)
    most = call.state.config.max_batch
    if len(body.acks) > most:
        raise HttpError(413, f"at most {most} acks fit into one request, got {len(body.acks)}", "batch_too_large")
    acks = [AckRequest(one.lease, one.id, one.status, one.error, one.delay) for one in body.acks]
    return reply(Applied(await _run(call, acks) if acks else []))


async def _run(call: Call, acks: list[AckRequest]) -> list[bool]:
    for number, one in enumerate(acks):
        for name, value in (("lease", one.lease), ("id", one.id)):
            if value is not None and not address.is_uuid(value):
                raise bad_request(f"item {number}: {name} must be a UUID, got {value[:40]!r}")
    await require_on_queues(call, "ack", calls.QUEUES_OF_LEASES, leases=list({one.lease for one in acks}))
    applied = await call.state.part(ApiAcks)(acks)
    done = sum(yes for yes, one in zip(applied, acks, strict=True) if one.status == "completed")
    call.state.meter.messages("acked", done)
    return applied


async def extend(call: Call) -> Reply:
    lease = call.params["lease"]
    body = await call.json(ExtendBody, default=ExtendBody())
    if not address.is_uuid(lease):
        raise bad_request(f"lease must be a UUID, got {lease[:40]!r}")
    await require_on_queues(call, "ack", calls.QUEUES_OF_LEASES, leases=[lease])
    expires_at = await call.state.database.value(calls.EXTEND, {"lease": lease, "seconds": body.seconds})
    return reply(LeaseExtended(expires_at.isoformat()))


def _endpoint(verb: str, run: object, body: object, summary: str, result: object = Applied) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/api/v1/leases/{{lease}}/{verb}",
        action="ack",
        on="each",
        run=run,  # type: ignore[arg-type]
        summary=summary,
        body=body,
        body_required=False,
        answers={200: result},
    )


ENDPOINTS = (
    _endpoint("ack", ack, AckBody, "Acknowledge messages of a lease, or all of them."),
    _endpoint("fail", fail, FailBody, "Mark messages of a lease as failed. The retry policy decides what follows."),
    _endpoint("dead-letter", dead_letter, DeadLetterBody, "Move messages of a lease to the dead letters."),
    _endpoint("release", release, ReleaseBody, "End a lease. Messages without an ack are delivered again."),
    _endpoint("extend", extend, ExtendBody, "Extend a lease. It is never shortened.", LeaseExtended),
    Endpoint(
        method="POST",
        path="/api/v1/acks",
        action="ack",
        on="each",
        run=ack_many,
        summary="Apply many acks of any leases: completed, failed, failed_alone, dead_letter or release.",
        body=AckItems,
        answers={200: Applied},
    ),
)
