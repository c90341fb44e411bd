"""Messages reach every pending group through death, pause, late joins, restarts and long transactions (section I)."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from skep import AsyncSkep, NewMessage
from skep.upkeep import detect_dead_groups, retain
from tests.client.verbs import drain, lag, offsets, payloads, take, until
from tests.engine.verbs import broken, call, pass_time
from tests.fanout.verbs import AT_ONCE, HOUR, Q, by_partition, kept, let_die, missed, pending, running, status

Clients = Callable[..., AsyncSkep]
GROUPS = ("a", "b", "c")


async def subscribed(mq: AsyncSkep, *groups: str) -> None:
    for group in groups:
        await mq.subscribe(group, Q)


async def test_three_live_groups_get_everything(clients: Clients, db: psycopg.Connection):
    """Fan-out through the real producer and consumer: each of three groups gets each of 1000 messages once.

    Scenario 83.
    """
    groups, producer = clients(poll_interval=0.05), clients()
    came: dict[str, Counter[int]] = {group: Counter() for group in GROUPS}
    for group in GROUPS:

        async def handle(message, group=group):
            came[group][message.payload] += 1

        groups.consumer(Q, group=group, batch=50)(handle)
    await producer.queue(Q).configure(semantics="pub_sub", **AT_ONCE)
    async with running(groups):
        async with producer.queue(Q).buffer(size=100) as buffer:
            for number in range(1000):
                await buffer.push(number, partition=f"partition {number % 7}")
        await until(lambda: all(len(seen) == 1000 for seen in came.values()), "everyone to get everything")
    assert came == {group: Counter(range(1000)) for group in GROUPS}
    assert [sum((await lag(producer.queue(Q), group)).values()) for group in GROUPS] == [0, 0, 0]
    await retain(producer)
    assert (await producer.queue(Q).status()).messages == 0
    assert broken(db) == {}


async def test_ten_cleanups_equal_one(mq: AsyncSkep, db: psycopg.Connection):
    """A dead group is cleaned up ten times while the others work, and no message that they still need is deleted.

    Scenario 84.
    """
    q = mq.queue(Q)
    await q.configure(**AT_ONCE, dead_group_grace_seconds=0)
    await subscribed(mq, *GROUPS)
    await q.push_many(range(10))
    await take(q, "a", batch=4)
    await let_die(mq, db, "a")
    popped = await q.pop(group="b", batch=6)
    for _ in range(10):
        await detect_dead_groups(mq)
        await retain(mq)
        assert await pending(mq) == [["b", "c"]] * 10
    await popped.ack()
    assert offsets(await drain(q, "c")) == list(range(10))
    for _ in range(10):
        await detect_dead_groups(mq)
        assert await kept(mq) == [6, 7, 8, 9]
    assert await missed(mq) == {"a": 2}
    assert offsets(await drain(q, "b")) == [6, 7, 8, 9]
    assert await kept(mq) == []
    assert await missed(mq) == {"a": 6}
    assert broken(db) == {}


async def test_a_message_published_after_a_death(mq: AsyncSkep, db: psycopg.Connection):
    """The cleanup after the death does not affect it (scenario 85)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE, dead_group_grace_seconds=0)
    await subscribed(mq, *GROUPS)
    await q.push("before")
    for group in ("b", "c"):
        await take(q, group)
    await let_die(mq, db, "a")
    await q.push("after")
    assert await kept(mq) == [1]
    assert await pending(mq) == [["b", "c"]]
    assert [await take(q, group) for group in GROUPS] == [["after"]] * 3
    assert await kept(mq) == []
    assert await missed(mq) == {"a": 1}


async def test_revival_after_partial_completion(mq: AsyncSkep, db: psycopg.Connection):
    """It continues at its cursor.

    Completed messages are not delivered again, and retention waits for its backlog again (scenario 88).
    """
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await subscribed(mq, "a", "b")
    await q.push_many(range(10))
    batch = await q.pop(group="a", batch=4)
    for message in batch[:3]:
        await batch.ack(message)
    await let_die(mq, db, "a")
    await mq.heartbeat("a", Q)
    assert await status(mq, "a") == "ACTIVE"
    await mq.expire_leases()  # leased when it died
    assert len(await drain(q, "b")) == 10
    assert await kept(mq) == list(range(3, 10))
    assert sorted(offsets(await drain(q, "a"))) == list(range(3, 10))
    assert await kept(mq) == []
    assert await missed(mq) == {}
    assert broken(db) == {}


async def test_a_live_group_never_dies(clients: Clients, db: psycopg.Connection):
    """An idle consumer of this process, for a quarter of an hour with the defaults (scenario 101)."""
    mq, server = clients(poll_interval=0.02), clients()
    mq.consumer(Q, group="a")(lambda _message: None)
    async with running(mq):
        await until(lambda: server.subscriptions("a", Q), "the group to come")
        for _ in range(15):
            pass_time(db, 60)
            assert not any(found.died for found in await server.detect_dead_groups())
            await until(lambda: _seen_lately(server, db), "a sign of life")
        assert await server.detect_dead_groups() == []
        assert await status(server, "a") == "ACTIVE"


async def _seen_lately(mq: AsyncSkep, db: psycopg.Connection) -> bool:
    (found,) = await mq.subscriptions("a", Q)
    ((seen,),) = db.execute("SELECT clock_timestamp() - %s < interval '30 s'", [found.last_heartbeat_at]).fetchall()
    return seen


async def test_a_busy_group_never_dies(mq: AsyncSkep, db: psycopg.Connection):
    """Nor does one whose handler takes a quarter of an hour, as long as its lease is extended (scenario 101)."""
    await mq.queue(Q).push(1)
    batch = await mq.queue(Q).pop(group="a", lease_time=90)
    for _ in range(15):
        pass_time(db, 60)
        await batch.extend(90)
        assert not any(found.died for found in await mq.detect_dead_groups())
    await batch.ack()
    assert await status(mq, "a") == "ACTIVE"


async def test_two_servers_count_a_missed_heartbeat_once(clients: Clients, db: psycopg.Connection):
    """Any number of detectors, at any pace: the seventh missed heartbeat kills, by the clock (scenario 102)."""
    servers = [clients(), clients()]
    await servers[0].subscribe("a", Q, miss_threshold=7)
    for overdue, misses in ((310, 5), (60, 6)):
        pass_time(db, overdue)
        for _ in range(4):
            reports = await asyncio.gather(*(server.detect_dead_groups() for server in servers))
            assert [(found.missed_heartbeats, found.died) for report in reports for found in report][:1] == [
                (misses, False)
            ]
        (found,) = await servers[1].groups("a", Q)
        assert (found.status, found.missed_heartbeats) == ("ACTIVE", misses)
    pass_time(db, 60)
    reports = await asyncio.gather(*(server.detect_dead_groups() for server in servers))
    assert [found.died for report in reports for found in report] == [True]
    assert await status(servers[0], "a") == "DEAD"


@pytest.mark.parametrize("wrong", [-600, 600])
async def test_a_wrong_client_clock(
    clients: Clients, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, wrong: float
):
    """Ten minutes early or late: heartbeats carry the database's time, so no group dies and no lease ends.

    Scenario 103.
    """
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + wrong)
    mq = clients(poll_interval=0.05)
    await mq.subscribe("a", Q)
    await mq.heartbeat("a", Q)
    await mq.queue(Q).push_many([1, 2])
    batch = await mq.queue(Q).pop(group="a", lease_time=1000)
    await batch.extend(1000)
    assert await mq.detect_dead_groups() == []
    pass_time(db, 290)
    assert await mq.detect_dead_groups() == []
    await batch.ack()
    (found,) = await mq.groups("a", Q)
    ((early, late),) = db.execute(
        "SELECT %(at)s < clock_timestamp() - interval '1 min', %(at)s > clock_timestamp()",
        {"at": found.last_consumed_at},
    ).fetchall()
    assert (found.status, found.missed_heartbeats, found.lag, late) == ("ACTIVE", 0, 1, False)
    assert early  # it was popped 290 s ago, whatever the client's clock says


async def test_joining_at_a_past_position(mq: AsyncSkep, db: psycopg.Connection):
    """A group joins at an offset that is still pending for others: no group loses a message (scenario 86)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await subscribed(mq, "a", "b")
    await q.push_many(range(10))
    await take(q, "a", batch=8)
    await take(q, "b", batch=3)
    assert await kept(mq) == list(range(3, 10))
    await mq.subscribe("c", Q, start_from=5)
    await q.push_many(range(10, 12))
    came = {group: offsets(await drain(q, group)) for group in ("b", "a")}
    assert await kept(mq) == list(range(5, 12))
    came["c"] = offsets(await drain(q, "c"))
    assert came == {"a": [8, 9, 10, 11], "b": list(range(3, 12)), "c": list(range(5, 12))}
    assert await kept(mq) == []
    assert await missed(mq) == {}


async def test_joining_during_a_publish_storm(clients: Clients, db: psycopg.Connection):
    """Groups subscribe from the beginning while four producers push: each message once for each group (scenario 87)."""
    producers, groups = [clients() for _ in range(4)], clients(poll_interval=0.02)
    names = [f"group {n}" for n in range(4)]
    came: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in names}

    async def produce(number: int, mq: AsyncSkep) -> None:
        for first in range(0, 400, 10):
            await mq.queue(Q).push_many([NewMessage(first + n, f"partition {number}") for n in range(10)])

    async def join(name: str) -> None:
        await groups.subscribe(name, Q, mode="all")
        while sum(came[name].values()) < 4 * 400:
            batch = await groups.queue(Q).pop(group=name, batch=100, partitions=4, wait=10)
            await batch.ack()
            came[name].update([(m.partition, m.payload) for m in batch])

    async def join_each_after_the_other() -> None:
        for name in names:
            await until(lambda name=name: _pushed(groups, 100 * names.index(name)), "the storm to get on")
            joining.append(asyncio.ensure_future(join(name)))

    joining: list[asyncio.Future[None]] = []
    await asyncio.gather(join_each_after_the_other(), *(produce(n, mq) for n, mq in enumerate(producers)))
    await asyncio.gather(*joining)
    everything = Counter((f"partition {number}", n) for number in range(4) for n in range(400))
    assert [name for name in names if came[name] != everything] == []
    assert broken(db) == {}


async def _pushed(mq: AsyncSkep, number: int) -> bool:
    return sum(found.messages for found in await mq.queues(Q)) >= number


async def test_new_partitions_and_groups_are_served_by_the_next_pop(mq: AsyncSkep):
    """A new key, a new group, a key that was drained and is used again: no rebalance, the next discovery finds it.

    Scenario 94.
    """
    q = mq.queue(Q)
    await q.push("first", partition="old")
    assert await take(q, "a") == ["first"]
    assert await take(q, "a") == []
    await q.push("new key", partition="new")
    assert await take(q, "a") == ["new key"]
    await q.push("again", partition="old")
    assert await take(q, "a") == ["again"]
    assert sorted(payloads(await drain(q, "new group"))) == ["again", "first", "new key"]


async def test_an_idle_partition_holds_nothing_back(mq: AsyncSkep, db: psycopg.Connection):
    """Neither a drained partition nor one that no group reads affects another (scenario 95)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE)
    await q.push("x", partition="drained")
    await drain(q, "a")
    pass_time(db, 24 * HOUR)
    await q.push("never read", partition="idle")
    await q.push_many([NewMessage(n, "busy") for n in range(5)])
    await take(q, "a", partition="busy")
    assert [await kept(mq, partition) for partition in ("drained", "busy", "idle")] == [[], [], [0]]


async def test_an_hour_of_pause_under_traffic(mq: AsyncSkep, db: psycopg.Connection):
    """Everything that was pushed meanwhile is delivered, in order, within the hard limit (scenario 89)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE, retention_seconds=2 * HOUR)
    await subscribed(mq, "a", "b")
    await q.push_many(range(5))
    await take(q, "a", batch=2)
    await mq.pause("a", Q)
    for n in range(12):
        await q.push(5 + n)
        await drain(q, "b")
        assert await take(q, "a") == []
        pass_time(db, 300)
        await mq.heartbeat("b", Q)
        await detect_dead_groups(mq)
        assert await kept(mq) == list(range(2, 6 + n))
    await mq.resume("a", Q)
    assert payloads(await drain(q, "a")) == list(range(2, 17))
    assert await kept(mq) == []
    assert await missed(mq) == {}


async def test_a_pause_longer_than_the_hard_limit(mq: AsyncSkep, db: psycopg.Connection):
    """Beyond the limit the group misses messages, and the number is recorded (scenario 89)."""
    q = mq.queue(Q)
    await q.configure(retention_seconds=HOUR)
    await subscribed(mq, "a")
    await q.push_many(range(5))
    await mq.pause("a", Q)
    pass_time(db, HOUR + 1)
    await q.push("young")
    assert await kept(mq) == [5]
    await mq.resume("a", Q)
    assert await take(q, "a") == ["young"]
    assert await missed(mq) == {"a": 5}


@pytest.mark.parametrize("default", ["all", "new"])
async def test_a_restart_with_default_options(clients: Clients, db: psycopg.Connection, default: str):
    """The group continues where it stopped, also if the server's default has changed in between (scenario 90)."""
    first = clients()
    await first.queue(Q).push_many(range(6))
    assert await take(first.queue(Q), "a", batch=3) == [0, 1, 2]
    await first.close()
    pass_time(db, HOUR)
    call(db, "configure_defaults", subscription_mode=default)
    again = clients()
    await again.queue(Q).push(6)
    assert await take(again.queue(Q), "a") == [3, 4, 5, 6]


async def test_a_consumer_is_stopped_and_started_again(clients: Clients, db: psycopg.Connection):
    """It continues; nothing is lost, nothing is delivered twice (scenario 91)."""
    came: list[int] = []
    for turn in range(3):
        mq = clients(poll_interval=0.05)
        await mq.queue(Q).push_many(range(turn * 50, turn * 50 + 50))

        async def handle(message):
            came.append(message.payload)

        mq.consumer(Q, group="a", batch=7)(handle)
        async with running(mq):
            await until(lambda turn=turn: len(came) > turn * 50 + 20, "some messages")
        await mq.close()
    await drain_into(clients(), came)
    assert came == list(range(150))
    assert broken(db) == {}


async def drain_into(mq: AsyncSkep, came: list[int]) -> None:
    came.extend(payloads(await drain(mq.queue(Q), "a")))


async def test_a_long_transaction(mq: AsyncSkep, db: psycopg.Connection, module_database_url: str):
    """The transaction that began first commits last: its message is delivered after the others, in every group.

    Scenario 92.
    """
    q = mq.queue(Q)
    async with await psycopg.AsyncConnection.connect(module_database_url) as slow:
        await slow.execute("SELECT pg_current_xact_id()")
        await mq_publish(slow, "began first")
        await q.push("committed first")
        assert await take(q, "a") == ["committed first"]
        await q.push("committed second")
        assert await take(q, "b") == ["committed first", "committed second"]
        await slow.commit()
    assert await take(q, "a") == ["committed second", "began first"]
    assert await take(q, "b") == ["began first"]


async def mq_publish(connection: psycopg.AsyncConnection, payload: str) -> None:
    """Publish in a transaction of the application."""
    await connection.execute("INSERT INTO skep.outbox (queue, payload) VALUES (%s, to_jsonb(%s::text))", [Q, payload])


async def test_other_partitions_do_not_wait_for_a_long_push(
    mq: AsyncSkep, db: psycopg.Connection, module_database_url: str
):
    """A push in an open transaction already has its offset.

    Its partition waits, others do not, nothing is skipped (scenario 92).
    """
    q = mq.queue(Q)
    await q.push_many([NewMessage(0, "slow"), NewMessage(0, "fast")])
    await drain(q, "a")
    with psycopg.connect(module_database_url) as slow:
        call(slow, "push", queue=Q, payload='"late"', partition="slow")
        for n in range(3):
            await q.push(n, partition="fast")
            assert await take(q, "a") == [n]
        slow.commit()
    assert await take(q, "a") == ["late"]
    await q.push("after", partition="slow")
    assert await take(q, "a") == ["after"]


async def test_a_poisonous_message(mq: AsyncSkep, db: psycopg.Connection):
    """After its limit it is dead-lettered and the partition continues (scenario 97)."""
    q = mq.queue(Q)
    await q.configure(retry_limit=2, retry_delay=0)
    await q.push_many(["poison", "good", "better"])
    for attempt in (1, 2, 3):
        batch = await q.pop(group="a")
        assert (batch[0].payload, batch[0].attempt) == ("poison", attempt)
        await batch.fail(None, "poisoned")
    assert await take(q, "a") == ["good", "better"]
    (dead_letter,) = await mq.dead_letters(Q, "a")
    assert (dead_letter.payload, dead_letter.attempts, dead_letter.error) == ("poison", 3, "poisoned")


async def test_a_partition_that_stops_at_a_poisonous_message(mq: AsyncSkep, db: psycopg.Connection):
    """With a very high limit, the partition waits until the message is fixed; other partitions do not (scenario 97)."""
    q = mq.queue(Q)
    await q.configure(retry_limit=1_000_000, retry_delay=0)
    await q.push_many([NewMessage("poison", "p"), NewMessage("good", "p")])
    for _ in range(20):
        batch = await q.pop(group="a", partition="p")
        assert payloads(batch) == ["poison"]
        await batch.fail(None, "not yet")
    await q.push("elsewhere", partition="o")
    assert await take(q, "a", partition="o") == ["elsewhere"]
    assert payloads(await drain(q, "a", partition="p")) == ["poison", "good"]


async def test_dead_letters_do_not_starve_a_group(mq: AsyncSkep, db: psycopg.Connection):
    """A thousand of them at the head: the next pop continues after them, and the messages can be deleted.

    Scenario 98.
    """
    q = mq.queue(Q)
    await q.configure(retry_limit=0, **AT_ONCE)
    await q.push_many(range(1010))
    await subscribed(mq, "b")
    await (await q.pop(group="a", batch=1000)).fail(None, "all bad")
    assert await take(q, "a") == list(range(1000, 1010))
    assert (await q.status()).dead_letters == 1000
    await drain(q, "b", batch=1000)
    assert await kept(mq) == []
    assert sum(found.letters for found in await mq.count_dead_letters(Q, "a")) == 1000
    await q.push("next")
    assert [await take(q, group) for group in ("a", "b")] == [["next"], ["next"]]


async def test_a_dead_letter_is_redriven_for_its_group_only(mq: AsyncSkep, db: psycopg.Connection):
    """Also after the message itself is deleted.

    The other group does not get it, and retention deletes the copy too (scenario 99).
    """
    q = mq.queue(Q)
    await q.configure(retry_limit=0, **AT_ONCE)
    await subscribed(mq, "a", "b")
    await q.push("x", partition="p")
    await (await q.pop(group="a")).fail(None, "bad")
    assert await take(q, "b") == ["x"]
    assert await kept(mq, "p") == []
    (redriven,) = await mq.redrive(Q, "a")
    assert await take(q, "b", partitions=10) == []
    again = await drain(q, "a", partitions=10)
    assert [(m.id, m.payload) for m in again] == [(redriven.message_id, "x")]
    assert await mq.dead_letters(Q) == []
    await retain(mq)
    assert (await q.status()).messages == 0
    assert broken(db) == {}


async def test_partitions_created_while_a_group_was_dead(mq: AsyncSkep, db: psycopg.Connection):
    """Retention keeps them for the group from the moment of its revival (scenarios 85, 88)."""
    q = mq.queue(Q)
    await q.configure(**AT_ONCE, dead_group_grace_seconds=0)
    await subscribed(mq, "a", "b")
    await q.push(0, partition="old")
    await drain(q, "a")
    await let_die(mq, db, "a")
    await q.push_many([NewMessage(n, "new") for n in range(4)])
    await take(q, "b", partition="new", batch=2)
    assert await kept(mq, "new") == [2, 3]
    assert await missed(mq) == {"a": 2}
    await mq.heartbeat("a", Q)
    await drain(q, "b")
    assert await kept(mq, "new") == [2, 3]
    assert by_partition(await drain(q, "a")) == {"new": [2, 3]}
    assert await missed(mq) == {"a": 2}
