"""Where a group starts, through the client: seed 000's tests and edge cases, seed 004's scenarios, and seeks."""

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
    """Messages of an hour ago."""
    await mq.queue("q").push_many([NewMessage(item, partition) for item in items])
    pass_time(db, HOUR)


def stored(db: psycopg.Connection, group: str = "g") -> list[tuple]:
    query = "SELECT queue, partition, namespace, task, mode FROM skep.subscriptions WHERE group_name = %s ORDER BY id"
    return db.execute(query, [group]).fetchall()


async def test_new_mode_on_one_partition(mq: AsyncSkep, db: psycopg.Connection):
    """S1, seed 000 test 1: the message that is there when the group is born, and those after it."""
    q = mq.queue("q")
    for name in ("M1", "M2"):
        await q.push(name, partition="p1")
        assert await take(q, partition="p1", **NEW) == [name]
    assert stored(db) == [("q", "p1", None, None, "new")]


@pytest.mark.parametrize("known", [True, False], ids=["group_has_met_p1", "group_has_met_nothing"])
async def test_a_partition_born_ten_minutes_later(mq: AsyncSkep, db: psycopg.Connection, *, known: bool):
    """S1, seed 000 test 2, S4: the start is the group's birth, not the moment it meets the partition."""
    q = mq.queue("q")
    if known:
        await q.push("M1", partition="p1")
    assert await take(q, **NEW) == (["M1"] if known else [])
    pass_time(db, 600)
    await q.push_many([NewMessage(name, "p2") for name in ("M2", "M3", "M4")])
    pass_time(db, 300)
    assert await take(q, **NEW) == ["M2", "M3", "M4"]


async def test_a_namespace_and_a_task_share_one_birth(mq: AsyncSkep, db: psycopg.Connection):
    """S1, seed 000 test 3, S5: queues that join later start at the same birth, across both wildcards."""
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


async def test_groups_are_born_independently(mq: AsyncSkep, db: psycopg.Connection):
    """S1, seed 000 test 4: one group is new, the other reads everything; each keeps its own birth."""
    q = mq.queue("q")
    await old(mq, db, "old")
    await q.push("recent")
    assert await take(q, "cg1", **NEW) == ["recent"]
    pass_time(db, 60)
    assert await take(q, "cg2") == ["old", "recent"]
    assert await take(q, "cg3", **NEW) == []


async def test_each_partition_and_each_queue_has_its_own(mq: AsyncSkep, db: psycopg.Connection):
    """S1, edge cases 2 and 3: popped by name, p2 does not take the birth of p1, nor one queue the mode of another."""
    q = mq.queue("q")
    await old(mq, db, 1, partition="p1")
    assert await take(q, partition="p1", **NEW) == []
    await q.push(2, partition="p2")
    pass_time(db, 600)
    assert await take(q, partition="p2", **NEW) == []
    await q.push_many([NewMessage(3, "p1"), NewMessage(4, "p2")])
    assert [await take(q, partition=lane) for lane in ("p1", "p2")] == [[3], [4]]
    await mq.queue("q2").push("old")
    pass_time(db, HOUR)
    assert await take(mq.queue("q2")) == ["old"]


@pytest.mark.parametrize(("first", "later"), [("new", "all"), ("all", "new"), ("new", None)])
async def test_the_first_mode_wins(mq: AsyncSkep, db: psycopg.Connection, first: str, later: str | None):
    """S1, edge case 4: neither pop nor subscribe changes it afterwards."""
    q = mq.queue("q")
    await old(mq, db, "old")
    born = await mq.subscribe("g", "q", mode=first)
    assert await take(q, subscription_mode=later) == (["old"] if first == "all" else [])
    assert await mq.subscribe("g", "q", mode=later, start_from="2020-01-01" if later else None) == born
    await old(mq, db, "pushed after the birth", partition="p2")
    assert await take(q) == ["pushed after the birth"]


async def test_defaults_count_only_at_birth(mq: AsyncSkep, db: psycopg.Connection):
    """S1, edge cases 1 and 5, S2 scenario 4: a changed default does not change a group; queue mode has none."""
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
    """S2, scenarios 1 to 3 and 5: what is older than the lookback never comes, what woke the consumer does."""
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
    """S2, scenario 1: nothing first, then the first message is not skipped."""
    q = mq.queue("q")
    await q.configure()
    assert await take(q, partition="p1", **NEW) == []
    await q.push("M1", partition="p1")
    assert await take(q, partition="p1", **NEW) == ["M1"]


async def test_mixed_consumers(mq: AsyncSkep, db: psycopg.Connection):
    """S2, scenario 6: two groups of different modes on one partition."""
    q = mq.queue("q")
    await old(mq, db, "M1")
    assert await take(q, "cg-new", subscription_mode="new-only") == []
    assert await take(q, "cg-all", subscription_mode="from_beginning") == ["M1"]
    await q.push("M2")
    assert [await take(q, group) for group in ("cg-new", "cg-all")] == [["M2"], ["M2"]]


@pytest.mark.parametrize(("age", "comes"), [(3.0, True), (5.0, False)])
async def test_the_lookback_is_four_seconds(mq: AsyncSkep, db: psycopg.Connection, age: float, *, comes: bool):
    """S2: two poll intervals."""
    q = mq.queue("q")
    await q.push("M")
    pass_time(db, age)
    assert await take(q, **NEW) == (["M"] if comes else [])


@pytest.mark.parametrize("how", ["pop", "subscribe"])
async def test_a_queue_that_does_not_exist_yet(mq: AsyncSkep, db: psycopg.Connection, how: str):
    """S3: the group is born before the queue, and gets the first message pushed, however late."""
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
async def test_the_most_specific_subscription_decides(mq: AsyncSkep, specific: int):
    """S6: partition, then queue, then namespace, then task."""
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


async def test_a_subscription_says_where_it_starts(mq: AsyncSkep, db: psycopg.Connection):
    """Scenario 14: times, offsets and ids are inclusive, and what is stored is returned: an id is a time elsewhere."""
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


async def test_wrong_words_are_refused(mq: AsyncSkep):
    """Section 4: unknown modes and unreadable places, at the first contact and later."""
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


async def minute_by_minute(mq: AsyncSkep, db: psycopg.Connection, *lanes: str) -> datetime:
    """Four messages a minute apart in each lane; return a time before the last of them."""
    receipts = []
    for number in range(4):
        receipts = await mq.queue("q").push_many([NewMessage(number, lane) for lane in lanes])
        if number < 3:
            pass_time(db, 60)
    return min(receipt.created_at for receipt in receipts) - timedelta(seconds=1)


async def drained(mq: AsyncSkep) -> dict[str, list[Any]]:
    """What comes, by partition."""
    found: dict[str, list[Any]] = {}
    for message in await drain(mq.queue("q")):
        found.setdefault(message.partition, []).append(message.payload)
    return found


@pytest.mark.parametrize("met", ["all", "none", "half"])
@pytest.mark.parametrize(("position", "first"), [("beginning", 0), ("end", 4), (2, 2), ("time", 3)])
async def test_seek_moves_every_lane(mq: AsyncSkep, db: psycopg.Connection, position: str | int, first: int, met: str):
    """S7: a group that has drained, met half of, or never seen the lanes: all of them start at the place."""
    q = mq.queue("q")
    time = await minute_by_minute(mq, db, "a", "b")
    if met != "none":
        await drain(q, **({} if met == "all" else {"partition": "a"}))
    skipped, again = {"all": (0, 8 - 2 * first), "none": (0, 0), "half": (first, 4 - first)}[met]
    assert await q.seek("g", time if position == "time" else position) == SeekResult(2, skipped, again)
    assert await lag(q) == {"a": 4 - first, "b": 4 - first}
    await q.push_many([NewMessage("next", lane) for lane in "abc"])
    rest = [*range(first, 4), "next"]
    assert await drained(mq) == {"a": rest, "b": rest, "c": ["next"]}


async def test_one_partition_only(mq: AsyncSkep, db: psycopg.Connection):
    """S7: the other lanes of the group, and the other groups, stay where they are."""
    q = mq.queue("q")
    await minute_by_minute(mq, db, "a", "b")
    for group in ("g", "other"):
        await drain(q, group)
    assert await q.seek("g", 2, partition="b") == SeekResult(1, 0, 2)
    assert (await lag(q), await lag(q, "other")) == ({"a": 0, "b": 2}, {"a": 0, "b": 0})


@pytest.mark.parametrize("mode", ["new", "all"])
async def test_a_stored_mode_does_not_undo_a_seek(mq: AsyncSkep, db: psycopg.Connection, mode: str):
    """S7: neither the subscription the group was born with nor the mode that its consumers go on to send."""
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


async def test_seek_drops_leases(mq: AsyncSkep):
    """S7, C5: the answer of who held them is refused."""
    q = mq.queue("q")
    await q.push_many("abc")
    (held,) = await hold(q, 1)
    await q.seek("g", "beginning")
    with refused(StaleLease):
        await held.ack()
    assert await take(q) == ["a", "b", "c"]


async def test_forgetting_a_group(mq: AsyncSkep, db: psycopg.Connection):
    """Section 4: with its subscription, or without; in one queue or everywhere."""
    q = mq.queue("q")
    await old(mq, db, "history")
    await q.push("recent")
    assert await take(q, **NEW) == ["recent"]
    assert await mq.delete_group("g", "q", keep_subscription=True) == 1
    assert await take(q) == ["recent"]
    await mq.delete_group("g")
    assert await take(q) == ["history", "recent"]
    assert [(group.group, group.queue, group.mode) for group in await mq.groups("g")] == [("g", "q", "all")]
