"""Popping: what a batch holds, which lane it is from, and who else may have it."""

import asyncio
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import InvalidArgument, StaleLease
from tests.client.verbs import LEASE_SECONDS, dead, drain, hold, lag, leased, offsets, payloads, refused, take
from tests.engine.verbs import broken, pass_time

HOUR = 3600


async def test_a_batch_is_a_sequence(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.push_many("abc")
    batch = await q.pop(batch=10)
    assert (len(batch), bool(batch), batch.open, batch.lost) == (3, True, True, False)
    assert (batch[0].payload, payloads(batch[1:]), payloads(batch)) == ("a", ["b", "c"], ["a", "b", "c"])
    assert {message.lease for message in batch} == {batch.lease}
    assert "3 messages of orders/Default from offset 0" in repr(batch)


async def test_nothing_is_an_empty_batch_and_not_an_error(mq: AsyncSkep):
    batch = await mq.queue("orders").pop()
    assert (len(batch), bool(batch), batch.open) == (0, False, False)
    await batch.ack()
    await batch.fail(None, "nothing")
    await batch.release()
    async with batch:
        pass
    with refused(InvalidArgument, "empty batch has no lease"):
        assert batch.lease
    assert "0 messages" in repr(batch)


async def test_the_size_of_a_batch_is_respected(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.push_many(range(10))
    assert [await take(q, batch=size) for size in (1, 3, 100)] == [[0], [1, 2, 3], list(range(4, 10))]


async def test_several_lanes_under_one_lease(mq: AsyncSkep):
    """`batch` is the total; the answer for the batch is for all lanes."""
    q = mq.queue("orders")
    await q.push_many([NewMessage(n, f"lane {n % 4}") for n in range(40)])
    batch = await q.pop(group="g", batch=25, partitions=3)
    by_lane = defaultdict(list)
    for message in batch:
        by_lane[message.partition].append(message.offset)
    assert [by_lane[lane] for lane in sorted(by_lane)] == [list(range(10)), list(range(10)), list(range(5))]
    await batch.ack()
    assert sum((await lag(q)).values()) == 15


async def test_one_lane_by_name(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.push_many([NewMessage(n, f"lane {n % 2}") for n in range(4)])
    assert await take(q, partition="lane 1") == [1, 3]
    assert await take(q, partition="no such lane") == []
    assert await take(q) == [0, 2]


async def test_every_queue_of_a_namespace_or_task(mq: AsyncSkep):
    for name in ("shop.mail", "shop.sms", "bank.mail"):
        await mq.queue(name).push(name)
    assert sorted(payloads(await drain(mq, "n", namespace="shop"))) == ["shop.mail", "shop.sms"]
    assert sorted(payloads(await drain(mq, "t", task="mail"))) == ["bank.mail", "shop.mail"]
    assert payloads(await drain(mq, "b", namespace="bank", task="mail")) == ["bank.mail"]
    with refused(InvalidArgument):
        await mq.pop()


async def test_the_lease_time(mq: AsyncSkep, db: psycopg.Connection):
    """Of the queue if none is given; it can be extended, but never shortened."""
    q = mq.queue("orders")
    await q.push("a")
    (batch,) = await hold(q, 1, lease_time=60)
    left = batch[0].lease_expires_at - datetime.now(UTC)
    assert timedelta(seconds=50) < left <= timedelta(seconds=61)
    deadline = await batch.extend(HOUR)
    assert timedelta(minutes=59) < deadline - datetime.now(UTC) <= timedelta(seconds=HOUR + 1)
    assert await batch.extend(1) == deadline
    pass_time(db, HOUR - 10)
    await batch.ack()
    await q.push("b")
    (batch,) = await hold(q, 1)
    left = batch[0].lease_expires_at - datetime.now(UTC)
    assert timedelta(seconds=LEASE_SECONDS - 10) < left <= timedelta(seconds=LEASE_SECONDS + 1)


async def test_auto_ack_moves_the_cursor_at_delivery(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    await q.push_many("ab")
    batch = await q.pop(group="g", auto_ack=True)
    assert (payloads(batch), batch.open, leased(db), await lag(q)) == (["a"], False, 0, {"Default": 1})
    async with batch:
        pass  # there is nothing to answer
    assert await take(q) == ["b"]


async def test_queue_mode_shares_and_groups_do_not(mq: AsyncSkep):
    """Scenarios 1 and 27: no group named is one group for all; each named one has everything for itself."""
    q = mq.queue("orders")
    await q.push_many(range(4))
    first = await q.pop(batch=2)
    assert (payloads(first), payloads(await q.pop(batch=2))) == ([0, 1], [])
    await first.ack()
    assert payloads(await q.pop(batch=9)) == [2, 3]
    assert [await take(q, group) for group in ("a", "b")] == [[0, 1, 2, 3]] * 2


async def test_two_workers_never_hold_the_same_message(mq: AsyncSkep, db: psycopg.Connection):
    """C8: four workers on five lanes: each message once, each lane in order, never two hold one."""
    q = mq.queue("orders")
    await q.push_many([NewMessage(n, f"lane {n % 5}") for n in range(200)])
    held: set[tuple[str, int]] = set()
    history = defaultdict(list)

    async def work() -> None:
        while sum(map(len, history.values())) < 200:
            batch = await q.pop(group="g", batch=4, wait=0.05)
            addresses = {(message.partition, message.offset) for message in batch}
            assert not held & addresses
            held.update(addresses)
            for message in batch:
                history[message.partition].append(message.offset)
            held.difference_update(addresses)  # before the answer is stored: afterwards others may have them
            await batch.ack()

    await asyncio.gather(*[work() for _ in range(4)])
    assert history == {f"lane {lane}": list(range(40)) for lane in range(5)}
    assert broken(db) == {}


async def test_a_slow_lane_never_delays_another(mq: AsyncSkep, db: psycopg.Connection):
    """C9: one lane is held all the time, another waits for its retry; the third goes on."""
    q = mq.queue("orders")
    await q.configure(retry_delay=HOUR)
    await q.push_many([NewMessage(n, lane) for lane in ("slow", "failing") for n in range(3)])
    held = await q.pop(group="g", batch=9, partition="slow")
    failing = await q.pop(group="g", batch=9, partition="failing")
    await failing.fail(None, "later")
    for n in range(5):
        await q.push(n, partition="quick")
        assert await take(q) == [n]
    await held.ack()
    assert (await lag(q), broken(db)) == ({"slow": 0, "failing": 3, "quick": 0}, {})


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
async def test_a_lane_that_is_not_ready_never_hides_one_that_is(mq: AsyncSkep, db: psycopg.Connection, option: str):
    """C10: of a hundred lanes one is ready."""
    q = mq.queue("orders")
    await mq.configure_queue("orders", {option: 60})
    await q.push("ready", partition="lane 50")
    pass_time(db, 61)
    await q.push_many([NewMessage("early", f"lane {n}") for n in range(100) if n != 50])
    assert payloads(await drain(q)) == ["ready"]
    pass_time(db, 61)
    assert len(await drain(q)) == 99


async def test_priority_between_queues_of_a_namespace(mq: AsyncSkep):
    for name, priority in (("shop.low", 1), ("shop.high", 9)):
        await mq.queue(name).configure(priority=priority)
        await mq.queue(name).push_many([NewMessage(name, f"lane {n}") for n in range(3)])
    assert payloads(await drain(mq, namespace="shop")) == ["shop.high"] * 3 + ["shop.low"] * 3


async def test_eight_workers_share_a_lane(mq: AsyncSkep, db: psycopg.Connection):
    """C11: `concurrency` 8; disjoint runs at once, each message once, the cursor right after some crash."""
    q = mq.queue("orders")
    await q.configure(concurrency=8)
    await q.push_many(range(80))
    batches = await hold(q, 9, batch=5)
    assert [offsets(batch) for batch in batches] == [list(range(n, n + 5)) for n in range(0, 40, 5)] + [[]]
    for number in (6, 0, 3, 1):
        await batches[number].ack()
    assert await lag(q) == {"Default": 70}  # the third, with offset 10, is still out
    pass_time(db, LEASE_SECONDS + 1)  # its worker and three others have crashed
    rest = await drain(q, batch=5)
    assert sorted(offsets(rest)) == [*range(10, 15), *range(20, 30), *range(35, 80)]
    assert {message.attempt for message in rest if message.offset < 40} == {2}
    assert (await lag(q), broken(db)) == ({"Default": 0}, {})


async def test_a_stale_lease_is_refused_and_changes_nothing(mq: AsyncSkep, db: psycopg.Connection):
    """C5: after takeover, in every verb; the batch knows that it is lost."""
    q = mq.queue("orders")
    await q.push_many(range(3))
    (old,) = await hold(q, 1)
    pass_time(db, LEASE_SECONDS + 1)
    new = await q.pop(group="g", batch=1)
    for verb in (old.ack, old.release, old.extend):
        with refused(StaleLease, "has ended"):
            await verb()
        assert (old.lost, old.open) == (True, False)
    with refused(StaleLease):
        await old.ack(old[0])
    for verb in (old.fail, old.dead_letter):
        with refused(StaleLease):
            await verb(None, "late")
    assert (await lag(q), await dead(mq, "orders")) == ({"Default": 3}, {})
    await new.ack()
    assert (await lag(q), broken(db)) == ({"Default": 2}, {})


async def test_an_answer_for_what_is_done_changes_nothing(mq: AsyncSkep, db: psycopg.Connection):
    """C5: below the cursor, or twice: the cursor never goes back."""
    q = mq.queue("orders")
    await q.push_many(range(4))
    first = await q.pop(group="g", batch=2)
    await first.ack()
    for message in (first[0], None):
        with refused(StaleLease):
            await first.ack(message)
    second = await q.pop(group="g", batch=2)
    await second.ack(second[0])
    await second.ack(second[0])
    assert (await lag(q), second.open) == ({"Default": 2}, True)
    with refused(InvalidArgument, "is not in this batch"):
        await second.fail(first[0], "of another batch")
    await second.ack(second[1])
    assert (await lag(q), await dead(mq, "orders"), broken(db)) == ({"Default": 0}, {}, {})


async def test_messages_come_while_others_are_held(mq: AsyncSkep):
    """C13 in small: a lane with many messages beside lanes with one each: the small ones are served at once."""
    q = mq.queue("orders")
    await q.push_many([NewMessage(n, "big") for n in range(500)])
    await q.push_many([NewMessage(lane, f"small {lane}") for lane in range(20)])
    seen = [(await q.pop(group="g", batch=10))[0].partition for _ in range(21)]
    assert len(set(seen)) == 21


async def test_a_pop_that_waits_returns_as_soon_as_it_can(mq: AsyncSkep):
    """And after its time, empty, if it cannot."""
    q = mq.queue("orders")
    began = asyncio.get_running_loop().time()
    assert not await q.pop(wait=0.2)
    assert 0.2 <= asyncio.get_running_loop().time() - began < 2
    await q.push("a")
    assert payloads(await q.pop(wait=30)) == ["a"]


async def test_a_waiting_pop_gets_a_lane_when_its_lease_is_over(mq: AsyncSkep):
    """C6, seen by who waits: nobody has to push anything for that."""
    q = mq.queue("orders")
    await q.push("a")
    (lost,) = await hold(q, 1, lease_time=0.3)
    found = await q.pop(group="g", wait=10)
    assert (payloads(found), found[0].attempt) == (["a"], 2)
    with refused(StaleLease):
        await lost.ack()
