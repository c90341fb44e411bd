"""Topics and publish: for which groups a message is, options of a queue, and when a push is refused (section A)."""

import asyncio
from typing import Any

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import InvalidArgument, NotFound, PushBlocked
from skep.message import QUEUE_MODE
from tests.client.verbs import payloads, refused, take
from tests.engine.verbs import broken, pass_time
from tests.fanout.groups import AT_ONCE, HOUR, MORTAL, Q, fan_out, kept, let_die, pending, subscribe

BLOCK: Any = {"semantics": "pub_sub", "block_without_subscribers": True}


async def test_an_unconfigured_queue_is_mixed(mq: AsyncSkep):
    """Of many consumers without a group exactly one gets it; named groups get it besides (scenario 1)."""
    q = mq.queue(Q)
    await q.push("a")
    assert (await q.status()).options["semantics"] == "mixed"
    batches = await asyncio.gather(*(q.pop() for _ in range(5)))
    assert sorted(map(len, batches)) == [0, 0, 0, 0, 1]
    assert await take(q, "g") == ["a"]


async def test_a_work_queue_is_required_by_one_group(mq: AsyncSkep):
    """Extra subscriptions do not change that (scenario 2)."""
    q = mq.queue(Q)
    await q.configure(semantics="queue", zero_subscriber_retention_seconds=1, **AT_ONCE)
    await q.push_many("abc")
    assert await fan_out(mq) == [(1, 0, [QUEUE_MODE])] * 3
    await subscribe(mq, "x", "y", "z")
    assert await fan_out(mq) == [(1, 0, [QUEUE_MODE])] * 3
    assert [await take(q, group, batch=1) for group in ("x", "y", "z", "x")] == [["a"], ["b"], ["c"], []]
    assert await fan_out(mq) == [(1, 1, [])] * 3


async def test_a_queue_without_subscribers(mq: AsyncSkep, db: psycopg.Connection):
    """A push is accepted, required by no group, and kept for as long as the queue says for such messages.

    Scenario 3.
    """
    await mq.queue(Q).configure(semantics="pub_sub", zero_subscriber_retention_seconds=HOUR, **AT_ONCE)
    await mq.queue(Q).push_many("ab")
    assert await fan_out(mq) == [(0, 0, [])] * 2
    pass_time(db, HOUR - 60)
    assert await mq.retain() == []
    assert await kept(mq) == [0, 1]
    pass_time(db, 61)
    assert [row.rule for row in await mq.retain()] == ["zero_subscriber_retention_seconds"]
    assert await kept(mq) == []


@pytest.mark.parametrize("groups", [["a"], ["a", "b", "c"]])
async def test_a_message_is_required_by_the_groups_active_at_publish(
    mq: AsyncSkep, db: psycopg.Connection, groups: list[str]
):
    """Not by a cancelled group, nor by a dead one without grace (scenario 4)."""
    await mq.queue(Q).configure(semantics="pub_sub", dead_group_grace_seconds=0)
    await subscribe(mq, "cancelled", "gone", *groups, mode="new")
    await subscribe(mq, "dead", **MORTAL)
    await mq.cancel("cancelled", Q)
    await mq.cancel_group("gone", Q)
    assert await let_die(mq, db) == ["dead"]
    await mq.queue(Q).push_many(range(2))
    assert await fan_out(mq) == [(len(groups), 0, groups)] * 2


@pytest.mark.parametrize("age", [0, 60])
async def test_the_snapshot_is_stable(mq: AsyncSkep, db: psycopg.Connection, age: int):
    """A group that subscribes from now does not change which groups older messages are required by (scenario 5)."""
    q = mq.queue(Q)
    await q.configure(semantics="pub_sub", **AT_ONCE)
    await subscribe(mq, "early")
    await q.push("old")
    pass_time(db, age)
    await subscribe(mq, "late", mode="new")
    await q.push("young")
    assert await pending(mq) == [["early"], ["early", "late"]]
    assert {
        row.group: row.required for row in await mq.message_groups((await mq.message_status(Q, "Default"))[0].id)
    } == {"early": True} | ({"late": False} if age == 0 else {})
    await take(q, "early")
    assert [row.end_offset for row in await mq.retain()] == [1]
    assert await take(q, "late") == ["young"]
    assert await fan_out(mq) == [(2, 2, [])]
    assert broken(db) == {}


async def test_configure_a_queue(mq: AsyncSkep):
    """Create, repeat, change, list, delete. One call creates and changes, so no queue is unknown to it (scenario 6)."""
    q = mq.queue(Q)
    for _ in range(2):
        await q.configure(semantics="pub_sub", completed_retention_seconds=HOUR)
    assert await mq.queues(Q) == [await q.status()]
    await q.configure(retention_seconds=2 * HOUR)
    options = (await q.status()).options
    assert [options[name] for name in ("semantics", "completed_retention_seconds", "retention_seconds")] == [
        "pub_sub", HOUR, 2 * HOUR,
    ]  # fmt: skip
    await mq.queue("other").configure()
    assert [queue.name for queue in await mq.queues()] == [Q, "other"]
    assert [await q.delete(), await q.delete()] == [True, False]
    assert await mq.queues(Q) == []
    with refused(NotFound, Q):
        await q.status()


@pytest.mark.parametrize(
    "options",
    [
        {"retention_seconds": 0}, {"retention_seconds": -1}, {"completed_retention_seconds": -1},
        {"zero_subscriber_retention_seconds": 0}, {"zero_subscriber_retention_seconds": -1}, {"max_size": 0},
        {"drop_idle_seconds": 0}, {"drop_idle_seconds": -1}, {"semantics": None}, {"semantics": "broadcast"},
        {"block_without_subscribers": None}, {"retain_until_archived": "perhaps"}, {"retention_seconds": "long"},
    ],
)  # fmt: skip
async def test_options_are_checked(mq: AsyncSkep, options: dict[str, Any]):
    """The error names the option, and nothing is stored (scenario 7)."""
    with refused(InvalidArgument, *options, Q):
        await mq.configure_queue(Q, options)
    assert await mq.queues() == []


async def test_names_are_checked(mq: AsyncSkep):
    """A missing name, group or mode is refused (scenario 7)."""
    nothing: Any = None
    for name in (nothing, "", "x" * 256):
        with refused(InvalidArgument, "queue"):
            await mq.configure_queue(name, {})
        with refused(InvalidArgument, "group"):
            await mq.subscribe(name, Q)
    with refused(InvalidArgument, "mode"):
        await mq.subscribe("g", Q, mode="")
    with refused(InvalidArgument):
        await mq.configure_queue(Q, nothing)
    assert (await mq.queues(), await mq.subscriptions()) == ([], [])


async def test_a_push_is_refused_without_subscribers(mq: AsyncSkep):
    """With a typed, retryable error; nothing of the call is stored (scenario 8)."""
    q = mq.queue(Q)
    await q.configure(**BLOCK)
    with refused(PushBlocked, Q) as caught:
        await mq.push_many([("other", 1), (Q, 2)])
    assert caught.error.retryable
    assert [(queue.name, queue.messages) for queue in await mq.queues()] == [(Q, 0)]
    await subscribe(mq, "g")
    await q.push("a")
    await mq.cancel("g", Q)
    with refused(PushBlocked, Q):
        await q.push("b")
    assert (await q.status()).messages == 1


async def test_a_blocked_message_in_a_transaction_or_an_outbox(mq: AsyncSkep, db: psycopg.Connection):
    """All of it fails and nothing is stored (scenario 8)."""
    await mq.queue("source").push("a")
    await mq.queue(Q).configure(**BLOCK)
    batch = await mq.queue("source").pop(group="g")
    with refused(PushBlocked, Q):
        async with mq.transaction() as tx:
            tx.ack(batch)
            tx.push(Q, "b")
    assert (await mq.lag("g", "source"))[0].lag == 1
    with pytest.raises(psycopg.Error) as caught:
        db.execute("INSERT INTO skep.outbox (queue, payload) VALUES (%s, '1')", [Q])
    assert caught.value.sqlstate == "SK006"
    assert (await mq.queue(Q).status()).messages == 0


@pytest.mark.parametrize(
    "options",
    [None, {}, {"semantics": "pub_sub"}, BLOCK | {"semantics": "queue"}, BLOCK | {"semantics": "mixed"},
     BLOCK | {"block_without_subscribers": False}],
)  # fmt: skip
async def test_queues_that_never_refuse_a_push(mq: AsyncSkep, options: dict[str, Any] | None):
    """An unknown queue, a work queue, a mixed one, or one without the option (scenario 9)."""
    if options is not None:
        await mq.configure_queue(Q, options)
    assert (await mq.queue(Q).push("a")).status == "queued"


async def test_only_active_groups_unblock_a_queue(mq: AsyncSkep, db: psycopg.Connection):
    """Paused or dead groups do not count; one active group is enough.

    A subscription to the namespace counts (scenario 10).
    """
    q = mq.queue(f"shop.{Q}")
    await q.configure(**BLOCK)
    await mq.subscribe("wide", namespace="shop")
    await mq.subscribe("mortal", q.name, **MORTAL)
    await q.push(0)
    await mq.pause("wide")
    await q.push(1)
    assert await let_die(mq, db) == ["mortal"]
    with refused(PushBlocked):
        await q.push(2)
    await mq.heartbeat("mortal", q.name)
    await q.push(3)
    await mq.pause("mortal", q.name)
    with refused(PushBlocked):
        await q.push(4)
    await mq.resume("wide")
    await q.push(5)
    await mq.resume("mortal", q.name)
    assert await take(q, "mortal") == await take(q, "wide") == [0, 1, 3, 5]
    assert payloads(await q.pop(group="wide")) == []
