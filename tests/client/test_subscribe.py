"""The start of a group: subscription modes, defaults, and seeks."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import InvalidArgument, NotFound, StaleLease
from skep.message import QUEUE_MODE, Defaults, SeekResult
from tests.client.verbs import drain, hold, lag, payloads, refused, take
from tests.engine.verbs import pass_time

HOUR = 3600
NEW: Any = {"subscription_mode": "new"}


async def old(mq: AsyncSkep, db: psycopg.Connection, *items: Any, partition: str = "Default") -> None:
    """Push messages that are an hour old."""
    await mq.queue("q").push_many([NewMessage(item, partition) for item in items])
    pass_time(db, HOUR)


def stored(db: psycopg.Connection, group: str = "g") -> list[tuple]:
    query = "SELECT queue, partition, namespace, task, mode FROM skep.subscriptions WHERE group_name = %s ORDER BY id"
    return db.execute(query, [group]).fetchall()


async def test_new_mode_on_one_partition(mq: AsyncSkep, db: psycopg.Connection):
    """The group gets the message that woke it, and later ones."""
    q = mq.queue("q")
    for name in ("M1", "M2"):
        await q.push(name, partition="p1")
        assert await take(q, partition="p1", **NEW) == [name]
    assert stored(db) == [("q", "p1", None, None, "new")]


@pytest.mark.parametrize("known", [True, False], ids=["group_has_met_p1", "group_has_met_nothing"])
async def test_a_partition_created_ten_minutes_later(mq: AsyncSkep, db: psycopg.Connection, *, known: bool):
    """The start is the time of the subscription, not of the first pop from the partition."""
    q = mq.queue("q")
    if known:
        await q.push("M1", partition="p1")
    assert await take(q, **NEW) == (["M1"] if known else [])
    pass_time(db, 600)
    await q.push_many([NewMessage(name, "p2") for name in ("M2", "M3", "M4")])
    pass_time(db, 300)
    assert await take(q, **NEW) == ["M2", "M3", "M4"]


async def test_a_namespace_and_a_task_share_one_start(mq: AsyncSkep, db: psycopg.Connection):
    """Queues that are created later have the same start."""
    await mq.queue("ns.mail").push("old")
    pass_time(db, HOUR)
    assert await take(mq, "by namespace", namespace="ns", **NEW) == []
    assert await take(mq, "by task", task="mail", **NEW) == []
    pass_time(db, 900)
    for name in ("ns.mail", "ns.later", "other.mail"):
        await mq.queue(name).push(name)
    pass_time(db, 900)
    assert sorted(payloads(await drain(mq, "by namespace", namespace="ns", **NEW))) == ["ns.later", "ns.mail"]
    assert sorted(payloads(await drain(mq, "by task", task="mail", **NEW))) == ["ns.mail", "other.mail"]
    assert stored(db, "by namespace") == [(None, None, "ns", None, "new")]
    assert stored(db, "by task") == [(None, None, None, "mail", "new")]


async def test_groups_start_independently(mq: AsyncSkep, db: psycopg.Connection):
    """One group is new, the other one reads everything; each keeps its own start."""
    q = mq.queue("q")
    await old(mq, db, "old")
    await q.push("recent")
    assert await take(q, "cg1", **NEW) == ["recent"]
    pass_time(db, 60)
    assert await take(q, "cg2") == ["old", "recent"]
    assert await take(q, "cg3", **NEW) == []


async def test_each_partition_and_each_queue_has_its_own_start(mq: AsyncSkep, db: psycopg.Connection):
    """A partition popped by name has its own start, and a queue its own mode."""
    q = mq.queue("q")
    await old(mq, db, 1, partition="p1")
    assert await take(q, partition="p1", **NEW) == []
    await q.push(2, partition="p2")
    pass_time(db, 600)
    assert await take(q, partition="p2", **NEW) == []
    await q.push_many([NewMessage(3, "p1"), NewMessage(4, "p2")])
    assert [await take(q, partition=partition) for partition in ("p1", "p2")] == [[3], [4]]
    await mq.queue("q2").push("old")
    pass_time(db, HOUR)
    assert await take(mq.queue("q2")) == ["old"]


@pytest.mark.parametrize(("first", "later"), [("new", "all"), ("all", "new"), ("new", None)])
async def test_the_first_mode_wins(mq: AsyncSkep, db: psycopg.Connection, first: str, later: str | None):
    """Neither pop nor subscribe changes it later."""
    q = mq.queue("q")
    await old(mq, db, "old")
    born = await mq.subscribe("g", "q", mode=first)
    assert await take(q, subscription_mode=later) == (["old"] if first == "all" else [])
    assert await mq.subscribe("g", "q", mode=later, start_from="2020-01-01" if later else None) == born
    await old(mq, db, "pushed after the birth", partition="p2")
    assert await take(q) == ["pushed after the birth"]


async def test_defaults_apply_only_to_new_groups(mq: AsyncSkep, db: psycopg.Connection):
    """A changed default does not change an existing group, and queue mode has no default."""
    q = mq.queue("q")
    await old(mq, db, "M1")
    await mq.subscribe("elder", "q")
    assert await mq.configure_defaults(subscription_mode="new") == Defaults("new", 2)
    assert await take(q, "elder") == ["M1"]
    assert await take(q, "young") == []
    await mq.configure_defaults(subscription_mode="all", max_poll_interval=3)
    assert await mq.defaults() == Defaults("all", 3)
    await q.push("M2")
    assert [await take(q, group) for group in ("elder", "young")] == [["M2"], ["M2"]]
    assert await take(q, QUEUE_MODE, **NEW) == ["M1", "M2"]


async def test_new_mode_skips_history_and_not_the_first_message(mq: AsyncSkep, db: psycopg.Connection):
    """Messages before the lookback are not delivered; the message that woke the consumer is."""
    q = mq.queue("q")
    await old(mq, db, "M1", "M2", "M3")
    await q.push("M4")
    batch = await q.pop(group="g", batch=9, **NEW)
    assert (payloads(batch), await lag(q)) == (["M4"], {"Default": 1})  # history is not pending
    await batch.ack()
    assert await lag(q) == {"Default": 0}
    await q.push("M5")
    assert (await lag(q), await take(q, **NEW)) == ({"Default": 1}, ["M5"])
    assert await take(q, "traditional") == ["M1", "M2", "M3", "M4", "M5"]


async def test_new_mode_on_an_empty_partition(mq: AsyncSkep):
    """The first message after an empty pop is not skipped."""
    q = mq.queue("q")
    await q.configure()
    assert await take(q, partition="p1", **NEW) == []
    await q.push("M1", partition="p1")
    assert await take(q, partition="p1", **NEW) == ["M1"]


async def test_mixed_consumers(mq: AsyncSkep, db: psycopg.Connection):
    """Two groups with different modes read one partition."""
    q = mq.queue("q")
    await old(mq, db, "M1")
    assert await take(q, "cg-new", subscription_mode="new-only") == []
    assert await take(q, "cg-all", subscription_mode="from_beginning") == ["M1"]
    await q.push("M2")
    assert [await take(q, group) for group in ("cg-new", "cg-all")] == [["M2"], ["M2"]]


@pytest.mark.parametrize(("age", "comes"), [(3.0, True), (5.0, False)])
async def test_the_lookback_is_four_seconds(mq: AsyncSkep, db: psycopg.Connection, age: float, *, comes: bool):
    """It is twice the poll interval."""
    q = mq.queue("q")
    await q.push("M")
    pass_time(db, age)
    assert await take(q, **NEW) == (["M"] if comes else [])


@pytest.mark.parametrize("how", ["pop", "subscribe"])
async def test_a_queue_that_does_not_exist_yet(mq: AsyncSkep, db: psycopg.Connection, how: str):
    """The group subscribes before the queue exists, and gets its first message, however late."""
    q = mq.queue("q")
    if how == "subscribe":
        await mq.subscribe("g", "q", mode="new")
    else:
        assert await take(q, **NEW) == []
    assert await mq.queues("q") == []
    pass_time(db, 600)
    await q.push("first", partition="p")
    pass_time(db, 600)
    assert await take(q) == ["first"]


@pytest.mark.parametrize("specific", range(4), ids=["partition", "queue", "namespace", "task"])
async def test_the_most_specific_subscription_applies(mq: AsyncSkep, specific: int):
    """The order is partition, queue, namespace, task."""
    scopes: list[dict[str, Any]] = [
        {"queue": "ns.task", "partition": "p"},
        {"queue": "ns.task"},
        {"namespace": "ns"},
        {"task": "task"},
    ]
    await mq.queue("ns.task").push_many([NewMessage(n, "p") for n in range(9)])
    for rank, scope in reversed(list(enumerate(scopes[specific:]))):
        await mq.subscribe("g", **scope, start_from=rank + 1)
    where = {"queue": "ns.task"} if specific < 2 else scopes[specific]
    assert await take(mq, **where) == list(range(1, 9))


async def test_a_subscription_with_a_start(mq: AsyncSkep, db: psycopg.Connection):
    """Times, offsets and ids are inclusive. The stored start is returned; elsewhere an id counts as a time."""
    q = mq.queue("q")
    receipts = await q.push_many("abc")
    pass_time(db, 60)
    starts = {
        "offset": await mq.subscribe("offset", "q", start_from=1),
        "id": await mq.subscribe("id", "q", mode="message_id", start_from=receipts[1].id),
        "time": await mq.subscribe("time", "q", start_from=datetime.now(UTC) - timedelta(seconds=30)),
        "soon": await mq.subscribe("soon", "q", start_from=datetime.now(UTC) + timedelta(days=1)),
        "now": await mq.subscribe("now", "q", start_from="now"),
    }
    assert {name: (s.group, s.queue, s.mode, s.start_offset) for name, s in starts.items()} == {
        "offset": ("offset", "q", "offset", 1),
        "id": ("id", "q", "timestamp", None),
        "time": ("time", "q", "timestamp", None),
        "soon": ("soon", "q", "timestamp", None),
        "now": ("now", "q", "new", None),
    }
    await q.push("d")
    assert {name: await take(q, name) for name in starts} == {
        "offset": ["b", "c", "d"], "id": ["b", "c", "d"], "time": ["d"], "soon": [], "now": ["d"],
    }  # fmt: skip


async def test_invalid_modes_and_positions_are_refused(mq: AsyncSkep):
    """Unknown modes and invalid positions are refused, at the first pop and later."""
    q = mq.queue("q")
    with refused(InvalidArgument, "sometimes"):
        await mq.subscribe("g", "q", mode="sometimes")
    with refused(InvalidArgument, "half past nine"):
        await mq.subscribe("g", "q", start_from="half past nine")
    elsewhere = await mq.queue("other").push(1)
    with refused(NotFound, f"no message {elsewhere.id}"):
        await mq.subscribe("g", "q", mode="message_id", start_from=elsewhere.id)
    with refused(InvalidArgument):
        await mq.subscribe("g")
    await q.pop(group="g")
    with refused(InvalidArgument, "sometimes"):
        await q.pop(group="g", subscription_mode="sometimes")
    with refused(InvalidArgument, "nowhere"):
        await q.seek("g", "nowhere")


async def minute_by_minute(mq: AsyncSkep, db: psycopg.Connection, *partitions: str) -> datetime:
    """Push four messages a minute apart to each partition; return a time before the last of them."""
    receipts = []
    for number in range(4):
        receipts = await mq.queue("q").push_many([NewMessage(number, partition) for partition in partitions])
        if number < 3:
            pass_time(db, 60)
    return min(receipt.created_at for receipt in receipts) - timedelta(seconds=1)


async def drained(mq: AsyncSkep) -> dict[str, list[Any]]:
    """Return the delivered messages by partition."""
    found: dict[str, list[Any]] = {}
    for message in await drain(mq.queue("q")):
        found.setdefault(message.partition, []).append(message.payload)
    return found


@pytest.mark.parametrize("met", ["all", "none", "half"])
@pytest.mark.parametrize(("position", "first"), [("beginning", 0), ("end", 4), (2, 2), ("time", 3)])
async def test_seek_moves_every_partition(
    mq: AsyncSkep, db: psycopg.Connection, position: str | int, first: int, met: str
):
    """All partitions start at the position, for a group that has read all, half, or none of them."""
    q = mq.queue("q")
    time = await minute_by_minute(mq, db, "a", "b")
    if met != "none":
        await drain(q, **({} if met == "all" else {"partition": "a"}))
    skipped, again = {"all": (0, 8 - 2 * first), "none": (0, 0), "half": (first, 4 - first)}[met]
    assert await q.seek("g", time if position == "time" else position) == SeekResult(2, skipped, again)
    assert await lag(q) == {"a": 4 - first, "b": 4 - first}
    await q.push_many([NewMessage("next", partition) for partition in "abc"])
    rest = [*range(first, 4), "next"]
    assert await drained(mq) == {"a": rest, "b": rest, "c": ["next"]}


async def test_seek_in_one_partition(mq: AsyncSkep, db: psycopg.Connection):
    """Other partitions of the group and other groups keep their cursors."""
    q = mq.queue("q")
    await minute_by_minute(mq, db, "a", "b")
    for group in ("g", "other"):
        await drain(q, group)
    assert await q.seek("g", 2, partition="b") == SeekResult(1, 0, 2)
    assert (await lag(q), await lag(q, "other")) == ({"a": 0, "b": 2}, {"a": 0, "b": 0})


@pytest.mark.parametrize("mode", ["new", "all"])
async def test_a_stored_mode_does_not_undo_a_seek(mq: AsyncSkep, db: psycopg.Connection, mode: str):
    """Neither the stored subscription nor the mode of later pops changes the cursor."""
    q = mq.queue("q")
    await minute_by_minute(mq, db, "a", "b")
    await take(q, partition="a", subscription_mode=mode)
    await take(q, subscription_mode=mode, batch=1)
    await mq.seek("g", "q", 1)
    await q.push_many([NewMessage(item, "c") for item in "xy"])
    found = {}
    while batch := await q.pop(group="g", batch=9, subscription_mode=mode):
        found[batch[0].partition] = payloads(batch)
        await batch.ack()
    assert found == {"a": [1, 2, 3], "b": [1, 2, 3], "c": ["x", "y"]}


async def test_seek_ends_leases(mq: AsyncSkep):
    """Their acks are refused."""
    q = mq.queue("q")
    await q.push_many("abc")
    (held,) = await hold(q, 1)
    await q.seek("g", "beginning")
    with refused(StaleLease):
        await held.ack()
    assert await take(q) == ["a", "b", "c"]


async def test_delete_a_group(mq: AsyncSkep, db: psycopg.Connection):
    """With its subscription or without, in one queue or in all."""
    q = mq.queue("q")
    await old(mq, db, "history")
    await q.push("recent")
    assert await take(q, **NEW) == ["recent"]
    assert await mq.delete_group("g", "q", keep_subscription=True) == 1
    assert await take(q) == ["recent"]
    await mq.delete_group("g")
    assert await take(q) == ["history", "recent"]
    assert [(group.group, group.queue, group.mode) for group in await mq.groups("g")] == [("g", "q", "all")]
