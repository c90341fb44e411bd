"""Count, redrive and purge dead letters, and read their audit trail."""

from datetime import datetime
from typing import Annotated

import msgspec

from skep.message import DeadLetterAudit, DeadLetterCount, Redriven
from skep.server.http.endpoint import Call, Endpoint, Param, Reply, reply

MOST = 10_000


class Letters(msgspec.Struct):
    """The dead letters that match all of these. `error` is a part of the text."""

    queue: str | None = None
    group: str | None = None
    error: str | None = None
    failed_after: datetime | None = None
    failed_before: datetime | None = None
    ids: list[Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]] | None = None
    limit: int = 1000
    dry_run: bool = False


class Redrive(Letters):
    """Redrive to the group of each dead letter only, or to `to_queue` for every group."""

    to_queue: str | None = None


class Driven(msgspec.Struct):
    """The dead letters that were redriven, or would be."""

    dry_run: bool
    letters: list[Redriven]


class Purged(msgspec.Struct):
    """How many were purged, or would be."""

    dry_run: bool
    letters: int


async def redrive(call: Call) -> Reply:
    wish = await call.json(Redrive)
    call.identity.require("redrive", wish.queue)
    if wish.to_queue is not None:
        call.identity.require("push", wish.to_queue)
        # else the caller could redrive payloads to a queue where they can be read
        call.identity.require("read", wish.queue)
    driven = await call.state.mq.redrive(
        wish.queue,
        wish.group,
        error=wish.error,
        failed_after=wish.failed_after,
        failed_before=wish.failed_before,
        ids=wish.ids,
        to_queue=wish.to_queue,
        limit=_limit(wish),
        dry_run=wish.dry_run,
        done_by=call.identity.subject,
    )
    if driven and not wish.dry_run:
        call.state.pushed({wish.to_queue} if wish.to_queue else {letter.queue for letter in driven})
    return reply(Driven(wish.dry_run, driven))


async def purge(call: Call) -> Reply:
    wish = await call.json(Letters)
    call.identity.require("admin", wish.queue)
    purged = await call.state.mq.purge_dead_letters(
        wish.queue,
        wish.group,
        error=wish.error,
        failed_after=wish.failed_after,
        failed_before=wish.failed_before,
        ids=wish.ids,
        limit=_limit(wish),
        dry_run=wish.dry_run,
        done_by=call.identity.subject,
    )
    return reply(Purged(wish.dry_run, purged))


def _limit(wish: Letters) -> int:
    return min(max(wish.limit, 0), MOST)


async def count(call: Call) -> Reply:
    found = await call.state.mq.count_dead_letters(
        call.text("queue"),
        call.text("group"),
        failed_after=call.instant("failed_after"),
        failed_before=call.instant("failed_before"),
    )
    return reply([each for each in found if call.identity.visible(each.queue)])


async def audit(call: Call) -> Reply:
    found = await call.state.mq.dead_letter_audit(call.integer("limit", 100, least=1, most=MOST))
    return reply([each for each in found if call.identity.visible(each.queue)])


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/dead-letters/redrive",
        action="redrive",
        on="each",
        run=redrive,
        summary="Redrive dead letters, oldest first. A dry run lists them.",
        body=Redrive,
        answers={200: Driven, 409: None},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/dead-letters/purge",
        action="admin",
        on="each",
        run=purge,
        summary="Delete dead letters, oldest first. A dry run counts them.",
        body=Letters,
        answers={200: Purged},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/dead-letters/count",
        action="read",
        on="each",
        run=count,
        summary="Count dead letters by error, most first.",
        shared=True,
        query=(
            Param("queue"),
            Param("group"),
            Param("failed_after", "string", "A time."),
            Param("failed_before", "string", "A time."),
        ),
        answers={200: list[DeadLetterCount]},
    ),
    Endpoint(
        method="GET",
        path="/api/v1/dead-letters/audit",
        action="read",
        on="each",
        run=audit,
        summary="List redrives and purges, newest first.",
        shared=True,
        query=(Param("limit", "integer", "At most this many; 100 if not given."),),
        answers={200: list[DeadLetterAudit]},
    ),
)
