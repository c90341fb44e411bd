"""Late joiners (section F). A backfill is a start and a retention hold: no copies, no batches, no checkpoints."""

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.errors import Conflict, InvalidArgument, NotFound
from skep.upkeep import retain
from tests.client.verbs import drain, offsets, payloads, refused, take, until
from tests.engine.verbs import broken, pass_time
from tests.fanout.verbs import AT_ONCE, HOUR, Q, by_partition, kept, pending, running

Clients = Callable[..., AsyncSkep]


async def history(mq: AsyncSkep, db: psycopg.Connection, size: int) -> None:
    """Push messages of an hour ago, which one group has completed, to a queue that deletes completed messages."""
    await mq.queue(Q).configure(**AT_ONCE)
    await mq.subscribe("early", Q)
    if size:
        await mq.queue(Q).push_many(range(size))
    await drain(mq.queue(Q), "early")
    pass_time(db, HOUR)


async def progress(mq: AsyncSkep, group: str = "late") -> tuple[str, int, int]:
    """Return (status, done, total), the numbers of a progress bar."""
    (found,) = await mq.groups(group, Q)
    return found.status, found.processed, found.lag


@pytest.mark.parametrize(("mode", "pending_messages"), [("all", 5), ("new", 0)])
async def test_from_the_beginning_or_from_now(mq: AsyncSkep, db: psycopg.Connection, mode: str, pending_messages: int):
    """From the beginning the group is pending for the history from the moment of joining.

    From now it is not (scenario 65).
    """
    await history(mq, db, 5)
    await mq.subscribe("late", Q, mode=mode)
    assert await pending(mq) == [["late"] if pending_messages else []] * 5
    assert await kept(mq) == list(range(pending_messages))
    await mq.queue(Q).push("after")
    assert payloads(await drain(mq.queue(Q), "late")) == [*range(pending_messages), "after"]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 30, 31])
async def test_histories_of_several_sizes(mq: AsyncSkep, db: psycopg.Connection, size: int):
    """None, small, an exact multiple, several batches: all of it is delivered, never more than requested at once.

    Scenario 66.
    """
    await history(mq, db, size)
    await mq.subscribe("late", Q)
    came: list[int] = []
    while batch := await mq.queue(Q).pop(group="late", batch=10):
        assert len(batch) <= 10
        came += offsets(batch)
        await batch.ack()
    assert came == list(range(size))
    assert await progress(mq) == ("ACTIVE", size, 0)
    assert await kept(mq) == []


async def test_joining_twice(mq: AsyncSkep, db: psycopg.Connection):
    """A second start is a no-op; a paused group gets nothing.

    Cancelled and unknown groups are refused (scenario 67).
    """
    await history(mq, db, 5)
    joined = await mq.subscribe("late", Q)
    assert len(await drain(mq.queue(Q), "late")) == 5
    again = await mq.subscribe("late", Q, mode="all")
    assert (again.created_at, again.status) == (joined.created_at, "ACTIVE")
    assert await take(mq.queue(Q), "late") == []
    await mq.seek("late", Q, "beginning")
    await mq.pause("late", Q)
    assert await take(mq.queue(Q), "late") == []
    await mq.cancel("late", Q)
    with refused(Conflict, "cancelled"):
        await mq.queue(Q).pop(group="late")
    with refused(Conflict, "cancelled"):
        await mq.resume("late", Q)
    with refused(NotFound, "nobody"):
        await mq.resume("nobody", Q)


@pytest.mark.parametrize("stop", ["pause", "close"])
async def test_a_backfill_that_is_stopped(clients: Clients, db: psycopg.Connection, stop: str):
    """It keeps its position, continues and finishes.

    The total is exact and nothing is delivered twice (scenario 68).
    """
    mq, worker = clients(), clients()
    await history(mq, db, 40)
    await mq.subscribe("late", Q)
    came = await take(worker.queue(Q), "late", batch=15)
    popped = await worker.queue(Q).pop(group="late", batch=10)
    for message in popped[:5]:
        await popped.ack(message)
    came += payloads(popped[:5])
    if stop == "pause":
        await mq.pause("late", Q)
    else:
        await popped.release()
        await worker.close()
    assert (await progress(mq))[1:] == (20, 20)
    assert await kept(mq) == list(range(20, 40))
    if stop == "pause":
        await mq.resume("late", Q)
    came += payloads(await drain(mq.queue(Q), "late"))
    assert came == list(range(40))
    assert await progress(mq) == ("ACTIVE", 40, 0)


async def test_many_start_at_once(clients: Clients, db: psycopg.Connection):
    """Five starts of one group create one subscription and share the work.

    Ten groups run side by side (scenario 69).
    """
    mq, workers = clients(), [clients() for _ in range(5)]
    await history(mq, db, 0)
    await mq.queue(Q).push_many([NewMessage(n, f"partition {n % 10}") for n in range(200)])
    joined = await asyncio.gather(*(worker.subscribe("late", Q) for worker in workers))
    assert len({subscription.created_at for subscription in joined}) == 1
    shares = await asyncio.gather(*(drain(worker.queue(Q), "late", batch=5) for worker in workers))
    assert sorted(payloads(message for share in shares for message in share)) == list(range(200))
    names = [f"group {n}" for n in range(10)]
    await asyncio.gather(*(mq.subscribe(name, Q) for name in names))
    whole = await asyncio.gather(*(drain(mq.queue(Q), name, batch=50) for name in names))
    assert [sorted(payloads(one)) for one in whole] == [list(range(200))] * 10
    assert broken(db) == {}


async def test_the_consumer_sets_the_pace(clients: Clients, db: psycopg.Connection):
    """A slow joiner slows no other group; it can be stopped while it waits.

    An invalid pace is refused (scenario 70).
    """
    mq, slow = clients(), clients(poll_interval=0.05)
    await history(mq, db, 30)
    go_on, seen = asyncio.Semaphore(2), []

    async def handle(message):
        await go_on.acquire()
        seen.append(message.payload)

    slow.consumer(Q, group="late", batch=5, fetch_ahead=0)(handle)
    async with running(slow):
        await until(lambda: len(seen) == 2, "two messages")
        await mq.queue(Q).push("live")
        assert await take(mq.queue(Q), "early") == ["live"]
        assert seen == [0, 1]  # no faster than its pace
        stopping = asyncio.ensure_future(slow.stop())
        for _ in range(5):
            go_on.release()
        await stopping
    assert seen == [0, 1, 2, 3, 4]  # a running handler finishes, and no more messages are fetched
    assert (await progress(mq))[1:] == (5, 26)
    with refused(InvalidArgument, "batch"):
        await mq.queue(Q).pop(group="late", batch=-1)
    with refused(InvalidArgument):
        await mq.queue(Q).configure(delayed_processing=-1)


@pytest.mark.parametrize(("backfill", "popped"), [(True, 10), (False, 0)])
async def test_all_history_or_only_new_messages(mq: AsyncSkep, db: psycopg.Connection, *, backfill: bool, popped: int):
    """Everything that is kept, or only later messages: counted, reported and retained accordingly (scenario 71)."""
    await history(mq, db, 10)
    await mq.subscribe("late", Q, mode="all", backfill=backfill)
    await mq.queue(Q).push_many(range(10, 13))
    await drain(mq.queue(Q), "early")
    backlog = {found.group: found.pending for found in await mq.pending_groups(Q)}
    assert backlog == {"late": popped + 3}
    assert await pending(mq) == [["late"] if backfill else []] * 10 + [["late"]] * 3
    assert await kept(mq) == list(range(10 - popped, 13))
    assert payloads(await drain(mq.queue(Q), "late")) == list(range(10 - popped, 13))
    assert broken(db) == {}


async def test_deletions_during_a_backfill(clients: Clients, db: psycopg.Connection):
    """Messages are deleted by hand and by retention while a joiner reads: no client gets an error (scenario 72)."""
    mq, workers = clients(), [clients() for _ in range(3)]
    await history(mq, db, 0)
    receipts = await mq.queue(Q).push_many([NewMessage(n, f"partition {n % 5}") for n in range(300)])
    await mq.subscribe("late", Q)
    gone: set[int] = set()

    async def delete() -> None:
        for number in range(0, 300, 3):
            if await mq.delete_message(receipts[number].id):
                gone.add(number)

    async def clean() -> None:
        for _ in range(20):
            await retain(mq)
            await drain(mq.queue(Q), "early", batch=20)

    _, *shares = await asyncio.gather(
        asyncio.gather(delete(), clean()), *(drain(worker.queue(Q), "late", batch=3) for worker in workers)
    )
    shares.append(await drain(mq.queue(Q), "late"))
    came = payloads(message for share in shares for message in share)
    assert len(came) == len(set(came))
    assert set(came) | gone == set(range(300))

    async def emptied() -> bool:
        """Return true if the queue is empty.

        Discovery passes deleted messages at the end some time after the last pop.
        """
        for group in ("early", "late"):
            assert payloads(await drain(mq.queue(Q), group)) == [] or group == "early"
        await retain(mq)
        return (await mq.queue(Q).status()).messages == 0

    await until(emptied, "all messages to be deleted")
    assert broken(db) == {}


async def test_progress_is_readable_at_any_time(mq: AsyncSkep, db: psycopg.Connection):
    """Status, done and total; also while something is leased, paused or not begun (scenario 73)."""
    await history(mq, db, 20)
    await mq.subscribe("late", Q)
    seen = [await progress(mq)]
    for _ in range(4):
        batch = await mq.queue(Q).pop(group="late", batch=5)
        assert await progress(mq) == seen[-1]  # leased is not done
        await batch.ack()
        seen.append(await progress(mq))
    assert seen == [("ACTIVE", done, 20 - done) for done in (0, 5, 10, 15, 20)]
    (partition,) = await mq.lag("late", Q)
    assert (partition.cursor, partition.last_offset, partition.lag) == (20, 19, 0)
    await mq.pause("late", Q)
    assert await progress(mq) == ("PAUSED", 20, 0)


async def test_live_traffic_during_a_backfill(clients: Clients, db: psycopg.Connection):
    """While a joiner reads its history, everything published is consumed, in order, by live groups.

    The speed is measured by `python -m bench --only retention` (row 106) (scenario 74).
    """
    mq, live, late, producer = clients(), clients(poll_interval=0.05), clients(), clients()
    await history(mq, db, 0)
    await producer.queue(Q).push_many([NewMessage(n, f"partition {n % 4}") for n in range(2000)])
    await drain(mq.queue(Q), "early", batch=500)
    await mq.subscribe("late", Q)
    came = []

    async def handle(message):
        came.append(message)

    live.consumer(Q, group="early", batch=20)(handle)

    async def publish() -> None:
        for n in range(200):
            await producer.queue(Q).push(2000 + n, partition=f"partition {n % 4}")

    async with running(live):
        _, backlog = await asyncio.gather(publish(), drain(late.queue(Q), "late", batch=50))
        await until(lambda: len(came) == 200, "the live group to get everything")
    backlog += await drain(late.queue(Q), "late")
    assert by_partition(came) == {f"partition {n}": list(range(500, 550)) for n in range(4)}
    assert by_partition(backlog) == {f"partition {n}": list(range(550)) for n in range(4)}
    assert broken(db) == {}
