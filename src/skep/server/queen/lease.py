"""What a consumer says of what it holds: acknowledge, and hold longer."""

import msgspec

from skep.server.http.access import require_on_lease, require_on_partitions
from skep.server.http.endpoint import Call, Endpoint, Reply, reply
from skep.server.work import ack, address, calls


class Extension(msgspec.Struct):
    """What is posted to extend a lease; an empty body means a minute."""

    seconds: float = 60


class Extended(
    msgspec.Struct, rename={"lease": "leaseId", "expires_at": "expiresAt", "new_expires_at": "newExpiresAt"}
):
    """Until when a lease holds now; three names for one time, as clients read one or another."""

    lease: str
    success: bool
    renewed: int
    expires_at: str | None
    new_expires_at: str | None
    lease_expires_at: str | None
    error: str | None


async def ack_one(call: Call) -> Reply:
    return await _ack(call, ack.parse(await call.body()))


async def ack_batch(call: Call) -> Reply:
    return await _ack(call, ack.parse_batch(await call.body(), call.state.config.max_batch))


async def _ack(call: Call, answers: list[ack.Answer]) -> Reply:
    await require_on_partitions(call, "ack", {answer.partition_id for answer in answers})
    verdicts = await call.state.ack(answers) if answers else []
    call.state.meter.messages("acked", sum(verdict.success and not verdict.noop for verdict in verdicts))
    return Reply(200, ack.encode(verdicts))


async def extend(call: Call) -> Reply:
    lease = call.params["lease"]
    wish = await call.json(Extension, default=Extension())
    partitions, expires_at = 0, None
    if address.is_uuid(lease):
        await require_on_lease(call, "ack", lease)
        arguments = {"lease": lease, "seconds": wish.seconds}
        ((partitions, expires_at),) = await call.state.database.call(calls.EXTEND, arguments, lambda *row: row)
    error = None if partitions else "Lease not found"
    return reply(Extended(lease, partitions > 0, partitions, expires_at, expires_at, expires_at, error))


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/ack",
        action="ack",
        on="each",
        run=ack_one,
        summary="Answer for one message. The answer is a list with one verdict.",
        body=ack.Answer,
        answers={200: list[ack.Verdict]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/ack/batch",
        action="ack",
        on="each",
        run=ack_batch,
        summary="Answer for many messages; each has its own verdict.",
        body=ack.Batch,
        answers={200: list[ack.Verdict]},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/lease/{lease}/extend",
        action="ack",
        on="each",
        run=extend,
        summary="Hold a lease longer. It never becomes shorter.",
        body=Extension,
        body_required=False,
        answers={200: Extended},
    ),
)
