"""The life of a subscription, as an administrator and a consumer see it (scenarios 11 to 22)."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from skep import AsyncSkep, Skep
from skep.errors import Conflict, DatabaseUnavailable, InvalidArgument, NotFound, StaleLease
from tests.client.verbs import drain, leased, refused, take, until
from tests.engine.verbs import broken, call, pass_time
from tests.fanout.groups import (
    AT_ONCE,
    HOUR,
    MORTAL,
    Q,
    end_waiting_sessions,
    fan_out,
    kept,
    let_die,
    pending,
    statuses,
    subscribe,
)

OPTIONS = ("heartbeat_interval", "heartbeat_timeout", "miss_threshold")


async def test_defaults(mq: AsyncSkep, db: psycopg.Connection):
    """Active, 60/300/3, with the default start of the server: the beginning, or now (scenario 11)."""
    plain = await mq.subscribe("plain", Q)
    call(db, "configure_defaults", subscription_mode="new")
    now = await mq.subscribe("now", Q)
    for stored in (plain, now):
        assert (stored.status, *(getattr(stored, name) for name in OPTIONS)) == ("ACTIVE", 60, 300, 3)
    assert [(stored.mode, stored.backfill) for stored in (plain, now)] == [("all", True), ("new", False)]


async def test_options_round_trip(mq: AsyncSkep):
    """Stored once; a later subscribe does not change them (scenario 12)."""
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    given = {"heartbeat_interval": 5.5, "heartbeat_timeout": 20, "miss_threshold": 2, "backfill": False}
    stored = await mq.subscribe("g", Q, partition="p", start_from=at, **given)
    assert {name: getattr(stored, name) for name in given} == given
    assert (stored.mode, stored.start_at, stored.partition) == ("timestamp", at, "p")
    assert await mq.subscribe("g", Q, partition="p", mode="all", miss_threshold=9) == stored
    assert await mq.subscriptions("g", Q) == await mq.subscriptions() == [stored]


@pytest.mark.parametrize(
    "options",
    [
        {"heartbeat_interval": 0}, {"heartbeat_interval": -1}, {"heartbeat_interval": 300}, {"heartbeat_timeout": 60},
        {"heartbeat_timeout": -1}, {"miss_threshold": 0}, {"miss_threshold": -1}, {"mode": "timestamp"},
        {"mode": "offset"}, {"mode": "message_id"}, {"mode": "sideways"}, {"mode": "timestamp", "start_from": ""},
        {"start_from": "half past nine"}, {"start_from": -1}, {"mode": "message_id", "start_from": "seven"},
        {"heartbeat_interval": float("nan")}, {"heartbeat_timeout": float("inf")},
    ],
)  # fmt: skip
async def test_options_are_checked(mq: AsyncSkep, options: dict[str, Any]):
    """A missing or unreadable position, an interval, timeout or threshold out of range.

    Nothing is stored (scenario 13).
    """
    with refused(InvalidArgument):
        await mq.subscribe("g", Q, **options)
    assert await mq.subscriptions() == []


async def test_where_a_group_starts(mq: AsyncSkep, db: psycopg.Connection):
    """Now is the next message, the beginning the first; ids and times are inclusive.

    Past the end is the end (scenario 14).
    """
    q = mq.queue(Q)
    receipts = []
    for payload in "abc":
        receipts.append(await q.push(payload))
        pass_time(db, 60)
    second: datetime = (await mq.message_status(Q, "Default"))[1].created_at
    starts: dict[str, dict[str, Any]] = {
        "now": {"mode": "now"},
        "beginning": {"mode": "from_beginning"},
        "offset 0": {"start_from": 0},
        "offset 1": {"start_from": 1},
        "first id": {"mode": "message_id", "start_from": receipts[0].id},
        "second id": {"mode": "message_id", "start_from": receipts[1].id},
        "time": {"start_from": second},
        "just after": {"start_from": second + timedelta(microseconds=1)},
        "tomorrow": {"start_from": datetime.now(UTC) + timedelta(days=1)},
        "past the end": {"start_from": 9},
    }
    for group, start in starts.items():
        await mq.subscribe(group, Q, **start)
    await q.push("d")
    assert {group: "".join(await take(q, group)) for group in starts} == {
        "now": "d", "beginning": "abcd", "offset 0": "abcd", "offset 1": "bcd", "first id": "abcd", "second id": "bcd",
        "time": "bcd", "just after": "cd", "tomorrow": "", "past the end": "d",
    }  # fmt: skip


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("start", [{"mode": "all"}, {"mode": "new"}, {"start_from": "2020-01-01T00:00:00Z"}])
async def test_an_empty_queue(mq: AsyncSkep, start: dict[str, Any], *, exists: bool):
    """Or one that does not exist yet: no error, and later messages arrive (scenario 15)."""
    q = mq.queue(Q)
    if exists:
        await q.configure()
    await mq.subscribe("g", Q, **start)
    assert await take(q) == []
    await q.push_many("ab")
    assert await take(q) == ["a", "b"]


async def test_pause_and_resume(mq: AsyncSkep, db: psycopg.Connection):
    """Cursor, backlog and partial acks stay; meanwhile nothing is delivered and no attempt counts (scenario 16)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await q.push_many(range(5))
    await take(q, batch=1)
    batch = await q.pop(group="g", batch=2)
    await batch.ack(batch[0])
    (paused,) = await mq.pause("g", Q)
    assert (paused.status, leased(db)) == ("PAUSED", 0)
    assert await mq.pause("g", Q) == []
    assert len(await q.pop(group="g")) == 0
    pass_time(db, HOUR)
    assert [row.end_offset for row in await mq.retain()] == [2]
    assert await pending(mq) == [["g"]] * 3
    (resumed,) = await mq.resume("g", Q)
    assert (resumed.status, resumed.status_changed_at > paused.status_changed_at) == ("ACTIVE", True)
    assert await mq.resume("g", Q) == []
    assert [(m.offset, m.attempt) for m in await drain(q)] == [(2, 1), (3, 1), (4, 1)]
    assert broken(db) == {}


async def test_pause_one_queue_of_a_namespace(mq: AsyncSkep):
    """The most specific subscription applies.

    The rest of the namespace continues, and so does its consumer (scenario 16).
    """
    for name in ("shop.a", "shop.b"):
        await mq.queue(name).push(name)
    await mq.subscribe("g", namespace="shop")
    await mq.pause("g", "shop.a")
    assert await take(mq, namespace="shop", partitions=5) == ["shop.b"]
    await mq.cancel("g", "shop.b")
    await mq.queue("shop.b").push("more")
    assert await take(mq, namespace="shop", partitions=5) == []
    await mq.resume("g", "shop.a")
    assert await take(mq, namespace="shop", partitions=5) == ["shop.a"]
    with refused(Conflict, "shop.b"):
        await mq.queue("shop.b").pop(group="g")


async def test_cancel_is_final(mq: AsyncSkep):
    """Resume fails with a clear error, a heartbeat does not revive it, a consumer ends.

    Subscribe starts again (scenario 17).
    """
    q = mq.queue(Q)
    await q.push_many("ab")
    await take(q, batch=1)

    @mq.consumer(Q, group="g")
    async def handler(message: object) -> None:
        raise AssertionError("nothing is delivered to a cancelled group")

    assert [s.status for s in await mq.cancel("g", Q)] == ["CANCELLED"]
    for verb in (mq.resume, mq.heartbeat, mq.pause):
        with refused(Conflict, "cancelled") as caught:
            await verb("g", Q)
        assert "Subscribe again" in caught.error.hint
    for consume in (q.pop(group="g"), handler.run()):
        with refused(Conflict, "cancelled", Q):
            await consume
    assert await mq.cancel("g", Q) == []  # a second call changes nothing
    assert await statuses(mq) == {"g": "CANCELLED"}
    assert (await mq.subscribe("g", Q, mode="all")).status == "ACTIVE"
    assert await take(q) == ["a", "b"]


async def test_cancel_releases(mq: AsyncSkep, db: psycopg.Connection):
    """No message waits for the group any more, its leases are deleted, its completed messages stay on record.

    Scenario 18.
    """
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await subscribe(mq, "g", "other")
    await q.push_many(range(4))
    await take(q, batch=1)
    batch = await q.pop(group="g", batch=2)
    await batch.ack(batch[0])
    await take(q, "other", batch=3)
    await mq.cancel("g", Q)
    assert leased(db) == 0
    with refused(StaleLease):
        await batch.ack()
    assert await fan_out(mq) == [(2, 2, []), (2, 2, []), (1, 1, []), (1, 0, ["other"])]
    (status,) = await mq.groups("g", Q)
    assert (status.status, status.leased, status.processed) == ("CANCELLED", 0, 2)
    await mq.retain()
    assert (await kept(mq), (await mq.groups("g", Q))[0].missed) == ([3], 0)
    assert broken(db) == {}


@pytest.mark.parametrize("verb", ["cancel", "pause", "cancel_group"])
async def test_a_change_that_fails_is_reported(
    clients: Callable[..., AsyncSkep], mq: AsyncSkep, db: psycopg.Connection, module_database_url: str, verb: str
):
    """It is one transaction: if it is cut off in the middle, the caller gets an error and nothing has changed.

    Scenario 19.
    """
    q = mq.queue(Q)
    await q.push_many("ab")
    batch = await q.pop(group="g")
    admin = clients()
    await admin.queues()
    with psycopg.connect(module_database_url) as other:
        other.execute("SELECT FROM skep.runs FOR UPDATE")
        change = asyncio.create_task(getattr(admin, verb)("g", Q))
        await until(lambda: end_waiting_sessions(db), "the change to wait for the run")
        with refused(DatabaseUnavailable):
            await change
    assert await statuses(mq) == {"g": "ACTIVE"}
    assert await pending(mq) == [["g"]] * 2
    await batch.ack()
    assert await take(q) == ["b"]


async def test_unknown_subscriptions(mq: AsyncSkep):
    """Each call names what does not exist, and creates nothing (scenario 20)."""
    await mq.queue(Q).push("a")
    for verb in (mq.pause, mq.resume, mq.cancel, mq.heartbeat, mq.cancel_group):
        for scope in ([Q], ["elsewhere"], []):
            with refused(NotFound, "nobody", *scope):
                await verb("nobody", *scope)
    with refused(NotFound, "nobody"):
        await mq.force_complete("nobody", Q, timedelta())
    with refused(NotFound, "elsewhere"):
        await mq.force_complete("nobody", "elsewhere", timedelta())
    assert (await mq.groups(), await mq.subscriptions(), await mq.lag("nobody")) == ([], [], [])
    assert (await mq.message_groups(UUID(int=0)), await mq.message_status("elsewhere", "p")) == ([], [])
    assert await mq.delete_group("nobody") == 0


def test_subscriptions_survive_restarts(data_dir: Path):
    """Several restarts of the server keep status, start, options and progress (scenario 21)."""
    with Skep(data_dir=data_dir) as mq:
        mq.queue(Q).push_many("abcd")
        mq.subscribe("active", Q, start_from=1, miss_threshold=7)
        mq.subscribe("paused", Q)
        mq.pause("paused", Q)
        mq.subscribe("cancelled", Q)
        mq.cancel("cancelled", Q)
        started = mq.subscriptions()
    seen = []
    for _ in range(2):
        with Skep(data_dir=data_dir) as mq:
            assert [(s.group, s.status, s.start_offset, s.miss_threshold) for s in mq.subscriptions()] == [
                ("active", "ACTIVE", 1, 7), ("paused", "PAUSED", None, 3), ("cancelled", "CANCELLED", None, 3),
            ]  # fmt: skip
            assert mq.subscriptions("paused") == started[1:2]
            assert len(mq.queue(Q).pop(group="paused")) == 0
            with mq.queue(Q).pop(group="active") as batch:
                seen += [message.payload for message in batch]
    assert seen == ["b", "c"]


async def test_lists_and_counts(mq: AsyncSkep, db: psycopg.Connection):
    """By queue, the dead ones, and how many of each status (scenario 22)."""
    await subscribe(mq, "a", "b")
    await subscribe(mq, "dead", **MORTAL)
    await subscribe(mq, "a", "c", queue="other")
    await mq.pause("b", Q)
    await mq.cancel("c", "other")
    await let_die(mq, db)
    assert [s.group for s in await mq.subscriptions(queue="other")] == ["a", "c"]
    assert [(s.group, s.queue) for s in await mq.subscriptions("a")] == [("a", Q), ("a", "other")]
    everyone = await mq.groups()
    assert [(g.group, g.queue) for g in everyone if g.status == "DEAD"] == [("dead", Q)]
    assert Counter(g.status for g in everyone) == {"ACTIVE": 2, "PAUSED": 1, "CANCELLED": 1, "DEAD": 1}
    assert await statuses(mq) == {"a": "ACTIVE", "b": "PAUSED", "dead": "DEAD"}


async def test_many_subscribe_at_once(mq: AsyncSkep):
    """The first decides, and all get the same result (scenario 26)."""
    stored = await asyncio.gather(*(mq.subscribe("g", Q, start_from=number) for number in range(8)))
    assert [stored[0]] * 8 == stored
    assert await mq.subscriptions() == stored[:1]
