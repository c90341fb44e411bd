"""`for batch in queue.consume()`: the next batch acknowledges, leaving releases, leases are extended meanwhile."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from skep import AsyncSkep, NewMessage
from skep.client.aio.batch import AsyncBatch
from skep.errors import PermissionDenied, StaleLease
from tests.client.verbs import dead, drain, lag, leased, offsets, payloads, refused, take, until
from tests.engine.verbs import broken

IDLE: Any = {"group": "g", "idle_timeout": 0.05}


async def nothing_is_held(db: psycopg.Connection) -> None:
    await until(lambda: leased(db) == 0, "every lease to be released")


async def test_the_next_batch_acknowledges(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    await q.push_many(range(10))
    seen = []
    async for batch in q.consume(batch=3, **IDLE):
        seen.append(payloads(batch))
        assert batch.open
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert (await lag(q), leased(db)) == ({"Default": 0}, 0)


async def test_the_loop_ends_after_the_idle_timeout(mq: AsyncSkep):
    q = mq.queue("orders")
    began = time.monotonic()
    async for _ in q.consume(idle_timeout=0.3):
        raise AssertionError("there is nothing")
    assert 0.3 <= time.monotonic() - began < 3


async def test_time_in_the_loop_is_not_idle(mq: AsyncSkep):
    """The loop works longer than the idle timeout, with nothing more to lease meanwhile."""
    q = mq.queue("orders")
    await q.push(1)
    seen = []
    async for batch in q.consume(group="g", idle_timeout=0.3):
        seen += payloads(batch)
        if len(seen) == 1:
            await asyncio.sleep(0.5)  # the work
            await q.push(2)
    assert seen == [1, 2]


async def test_messages_pushed_meanwhile_are_delivered(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.push(0)
    seen = []
    async for batch in q.consume(group="g", idle_timeout=5):
        seen += payloads(batch)
        if seen[-1] == 5:
            break
        await q.push(seen[-1] + 1)
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_leaving_releases_without_an_attempt(mq: AsyncSkep, db: psycopg.Connection):
    """The batch that was fetched ahead is released, too."""
    q = mq.queue("orders")
    await q.push_many([NewMessage(n, f"partition {n % 2}") for n in range(8)])
    async for batch in q.consume(group="g", batch=2):
        assert len(batch) == 2
        break
    await nothing_is_held(db)
    again = await drain(q)
    assert (sorted(payloads(again)), {message.attempt for message in again}) == (list(range(8)), {1})
    assert broken(db) == {}


async def test_leaving_by_an_exception_releases_without_an_attempt(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    await q.push_many(range(3))
    with suppress(ZeroDivisionError):
        async for batch in q.consume(group="g"):
            raise ZeroDivisionError(batch)
    await nothing_is_held(db)
    assert [(message.payload, message.attempt) for message in await drain(q)] == [(0, 1), (1, 1), (2, 1)]


async def test_leaving_and_closing_the_client_releases(clients: Callable[..., AsyncSkep], db: psycopg.Connection):
    """Also if the client is closed before the loop has ended."""
    mq, other = clients(), clients()
    await mq.queue("orders").push_many(range(3))
    async for _ in mq.queue("orders").consume(group="g"):
        break
    await mq.close()
    assert leased(db) == 0
    assert await take(other.queue("orders")) == [0, 1, 2]


async def test_closing_the_client_ends_a_loop_that_waits(clients: Callable[..., AsyncSkep], db: psycopg.Connection):
    mq = clients()
    ended = asyncio.create_task(consume_to_the_end(mq))
    await until(lambda: db.execute("SELECT count(*) FROM skep.subscriptions").fetchall() == [(1,)], "the first look")
    await mq.close()
    assert await ended == []


async def consume_to_the_end(mq: AsyncSkep) -> list[Any]:
    return [batch async for batch in mq.queue("orders").consume(group="g")]


async def test_with_batch_makes_an_exception_a_failure(mq: AsyncSkep):
    """The failure has the text of the exception, and the loop continues."""
    q = mq.queue("orders")
    await q.configure(retry_limit=0)
    await q.push_many("abc")
    seen = []
    async for batch in q.consume(batch=1, **IDLE):
        with suppress(ValueError):
            async with batch:
                seen += payloads(batch)
                if batch[0].payload == "b":
                    raise ValueError("not b")
    assert (seen, await dead(mq, "orders")) == (["a", "b", "c"], {1: "ValueError: not b"})


async def test_explicit_acks_are_kept(mq: AsyncSkep, db: psycopg.Connection):
    """The next batch acknowledges only the remaining messages."""
    q = mq.queue("orders")
    await q.push_many("abcd")
    released = False
    seen = []
    async for batch in q.consume(batch=2, **IDLE):
        seen.append(payloads(batch))
        if batch[0].payload == "a":
            await batch.fail(batch[0], "not a")
        elif not released:
            released = True
            await batch.release()
    assert seen == [["a", "b"], ["c", "d"], ["c", "d"]]
    assert (await dead(mq, "orders"), await lag(q), leased(db)) == ({0: "not a"}, {"Default": 0}, 0)


async def test_leaving_keeps_explicit_acks(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    await q.push_many("abc")
    async for batch in q.consume(group="g"):
        await batch.ack(batch[0])
        await batch.dead_letter(batch[1], "not b")
        break
    await nothing_is_held(db)
    assert (payloads(await drain(q)), await dead(mq, "orders")) == (["c"], {1: "not b"})


async def test_a_lease_is_extended_while_the_loop_works(mq: AsyncSkep):
    """The loop works much longer than the lease; no other consumer gets the messages."""
    q = mq.queue("orders")
    await q.push_many("ab")
    attempts = []
    async for batch in q.consume(batch=1, lease_time=0.3, **IDLE):
        attempts.append(batch[0].attempt)
        until_then = time.monotonic() + 0.8
        while time.monotonic() < until_then:
            assert not await q.pop(group="g")
            await asyncio.sleep(0.02)
        assert not batch.lost
    assert (attempts, await lag(q)) == ([1, 1], {"Default": 0})


async def test_a_lost_lease_is_known_to_the_loop(mq: AsyncSkep):
    """A seek ends the lease: the batch is lost, its ack is refused, and its messages are delivered again."""
    q = mq.queue("orders")
    await q.push("a")
    seen: list[AsyncBatch] = []
    async for batch in q.consume(lease_time=0.3, group="g", idle_timeout=0.3):
        seen.append(batch)
        if len(seen) == 1:
            await q.seek("g", "beginning")
            await until(lambda: seen[0].lost, "the loss to be noticed")
            with refused(StaleLease):
                await batch.ack()
    assert [payloads(batch) for batch in seen] == [["a"], ["a"]]
    assert await lag(q) == {"Default": 0}


@pytest.mark.parametrize("fetch_ahead", [0, 1, 5])
async def test_fetching_ahead_never_breaks_the_order_of_a_partition(
    mq: AsyncSkep, db: psycopg.Connection, fetch_ahead: int
):
    """Two loops of one group consume five partitions while messages are pushed."""
    q = mq.queue("orders")
    seen: dict[str, list[int]] = {f"partition {partition}": [] for partition in range(5)}

    async def loop() -> None:
        async for batch in q.consume(group="g", batch=3, fetch_ahead=fetch_ahead, idle_timeout=0.5):
            seen[batch[0].partition] += offsets(batch)

    loops = asyncio.gather(loop(), loop())
    for number in range(30):
        await q.push_many([NewMessage(number, partition) for partition in seen])
    await loops
    assert seen == {partition: list(range(30)) for partition in seen}
    assert (set((await lag(q)).values()), broken(db)) == ({0}, {})


async def test_a_slow_loop_does_not_keep_a_partition_from_others(mq: AsyncSkep):
    """A batch that was fetched ahead is released, and another worker of the group gets it."""
    q = mq.queue("orders")
    await q.push_many([NewMessage("slow", "one"), NewMessage("quick", "two")])
    taken: list[str] = []
    async with aclosing(q.consume(group="g", batch=1)) as loop:  # pyright: ignore[reportArgumentType]
        slow = await anext(loop)
        other = await q.pop(group="g", wait=10)
        taken += [*payloads(slow), *payloads(other)]
        await other.ack()
    assert sorted(taken) == ["quick", "slow"]


async def test_a_closed_loop_has_ended(mq: AsyncSkep, db: psycopg.Connection):
    q = mq.queue("orders")
    await q.push_many("ab")
    loop: Any = q.consume(group="g", batch=1)
    assert payloads(await anext(loop)) == ["a"]
    await loop.aclose()
    await loop.aclose()
    assert (leased(db), [batch async for batch in loop]) == (0, [])


async def test_a_permanent_fault_is_raised_in_the_loop(clients: Callable[..., AsyncSkep], stranger: str):
    """Missing rights are raised, and not retried forever."""
    with refused(PermissionDenied):
        async for _ in clients(stranger).queue("orders").consume(group="g"):
            raise AssertionError("there is nothing")


async def test_a_fault_while_the_loop_works_is_raised_with_the_next_batch(
    clients: Callable[..., AsyncSkep], user_url: Callable[..., str], db: psycopg.Connection
):
    url = user_url("skep_consumer")
    user = sql.Identifier(str(conninfo_to_dict(url)["user"]))
    db.execute("SELECT skep.push('orders', '1')")
    with refused(PermissionDenied):
        async for _ in clients(url).queue("orders").consume(group="g"):
            db.execute(sql.SQL("REVOKE skep_consumer FROM {}").format(user))


async def test_messages_of_one_partition_or_from_a_start(mq: AsyncSkep):
    q = mq.queue("orders")
    await q.push_many([NewMessage(n, partition) for partition in ("a", "b") for n in range(3)])
    by_name = [payloads(batch) async for batch in q.consume(partition="b", **IDLE)]
    from_one = [payloads(batch) async for batch in q.consume(partition="a", subscription_from="1", **IDLE)]
    assert (by_name, from_one) == ([[0, 1, 2]], [[1, 2]])
