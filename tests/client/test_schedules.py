"""Schedules, with both clients."""

from datetime import UTC, datetime

import psycopg

from skep import AsyncSkep
from skep.errors import InvalidArgument, NotFound
from skep.upkeep import run_schedules
from tests.client.verbs import refused, take

DUE = "UPDATE skep.schedules SET next_at = date_trunc('minute', clock_timestamp())"


async def test_a_schedule(mq: AsyncSkep, db: psycopg.Connection):
    made = await mq.schedule(
        "nightly",
        "0 2 * * *",
        "reports",
        {"kind": "sales"},
        partition="eu",
        headers={"a": 1},
        time_zone="Europe/Berlin",
        missed="skip",
    )
    assert (made.name, made.cron, made.time_zone, made.queue, made.partition) == (
        "nightly",
        "0 2 * * *",
        "Europe/Berlin",
        "reports",
        "eu",
    )
    assert (made.payload, made.headers, made.missed, made.paused) == ({"kind": "sales"}, {"a": 1}, "skip", False)
    assert made.next_at > datetime.now(UTC)
    assert await mq.schedules() == await mq.schedules("reports") == [made]
    assert await mq.schedules("other") == []


async def test_upkeep_pushes_its_ticks(mq: AsyncSkep, db: psycopg.Connection):
    await mq.schedule("often", "* * * * *", "orders", [1, None])
    assert await run_schedules(mq) is None
    db.execute(DUE)
    assert await run_schedules(mq) == "pushed 1 scheduled messages"
    assert await take(mq.queue("orders")) == [[1, None]]


async def test_a_refused_tick_is_reported(mq: AsyncSkep, db: psycopg.Connection):
    await mq.queue("orders").configure(semantics="pub_sub", block_without_subscribers=True)
    await mq.schedule("often", "* * * * *", "orders")
    db.execute(DUE)
    assert await run_schedules(mq) == "1 schedules are refused by their queues"


async def test_pause_resume_delete(mq: AsyncSkep):
    await mq.schedule("often", "* * * * *", "orders")
    assert (await mq.pause_schedule("often")).paused
    assert not (await mq.resume_schedule("often")).paused
    assert [await mq.delete_schedule("often") for _ in range(2)] == [True, False]
    with refused(NotFound, 'there is no schedule "often"'):
        await mq.pause_schedule("often")


async def test_invalid_arguments(mq: AsyncSkep):
    with refused(InvalidArgument, 'cron expression "61 * * * *": minute must be'):
        await mq.schedule("s", "61 * * * *", "orders")
    with refused(InvalidArgument, 'unknown time zone "Berlin"'):
        await mq.schedule("s", "@daily", "orders", time_zone="Berlin")
    with refused(InvalidArgument):
        await mq.schedule("s", "@daily", "orders", {1, 2})
