"""The log: dense offsets in commit order, times that never decrease, and pushes that never deadlock."""

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.threads import PATIENCE, at_once
from tests.engine.verbs import ack, broken, call, configure, drain, lag, pass_time, pop, push, push_to, take

Connect = Callable[..., psycopg.Connection]


def produce(connection: psycopg.Connection, producer: int, messages: int) -> None:
    """Push one by one, each in a transaction that waits before and after its push."""
    dice = random.Random(producer)
    for number in range(messages):
        with connection.transaction():
            connection.execute(
                "SELECT pg_current_xact_id()"
            )  # the transaction gets its id before it locks the partition
            time.sleep(dice.uniform(0, 0.003))
            push(connection, "q", [producer, number])
            time.sleep(dice.uniform(0, 0.003))


def consume(connection: psycopg.Connection, messages: int) -> list:
    """Pop and acknowledge until this many messages have arrived."""
    received = []
    deadline = time.monotonic() + PATIENCE
    while len(received) < messages and time.monotonic() < deadline:
        deliveries = pop(connection, "q", batch=7)
        ack(connection, deliveries)
        received += deliveries
    return received


def test_eight_slow_producers_lose_nothing(connect: Connect):
    """Every message is delivered, in offset order, offsets dense, the messages of each producer in its order.

    Scenario l1.
    """
    producers, messages = 8, 20
    jobs = [partial(produce, connect(), producer, messages) for producer in range(producers)]
    received = at_once(partial(consume, connect(), producers * messages), *jobs)[0] or []
    assert [delivery.offset for delivery in received] == list(range(producers * messages))
    for producer in range(producers):
        own = [delivery.payload[1] for delivery in received if delivery.payload[0] == producer]
        assert own == list(range(messages))
    observer = connect()
    assert pop(observer, "q") == []
    assert broken(observer) == {}


def test_offsets_are_dense_per_partition_and_rolled_back_pushes_leave_no_gap(connect: Connect):
    """The offset of a transaction that rolls back is used again (scenarios L1, L3)."""
    session = connect()
    push(session, "q", "a")
    with session.transaction(force_rollback=True):
        assert [row.offset for row in push(session, "q", "lost", "lost")] == [1, 2]
    assert [row.offset for row in push(session, "q", "b", "c")] == [1, 2]
    assert [row.offset for row in push(session, "q", "d", partition="other")] == [0]
    assert take(session, "q", partition="Default") == ["a", "b", "c"]
    assert broken(session) == {}


def test_every_message_is_stored_in_its_own_partition(mq: psycopg.Connection):
    """Names that sort differently in other collations must not be mixed up: messages find partitions by rank."""
    names = [
        "a",
        "B",
        "á",
        "_",
        "-",
        "Z",
        "z",
        "ä",
        "aa",
        "a b",
        "a-b",
        "ab",
        "ß",
        "ss",
        "日本",
        "1",
        "10",
        "2",
        "'",
        '"',
    ]
    random.Random(1).shuffle(names)
    items = [(queue, name, [queue, name, n]) for n in range(3) for queue in ("q", "Q", "q.ä") for name in names]
    results = push_to(mq, items)
    stored = mq.execute(
        'SELECT q.name, p.name, m.payload, m.partition_id, m."offset" FROM skep.messages m'
        " JOIN skep.partitions p ON p.id = m.partition_id JOIN skep.queues q ON q.id = p.queue_id"
    ).fetchall()
    assert {(queue, name) == tuple(payload[:2]) for queue, name, payload, _, _ in stored} == {True}
    by_address = {(partition_id, offset): payload for _, _, payload, partition_id, offset in stored}
    assert [by_address[row.partition_id, row.offset] for row in results] == [payload for _, _, payload in items]
    assert all(row.offset == payload[2] for row, (_, _, payload) in zip(results, items, strict=True))
    assert broken(mq) == {}


def test_every_field_of_a_message_is_delivered(mq: psycopg.Connection):
    headers, trace = {"k": ["v", None]}, "0f0e0d0c-0b0a-0908-0706-050403020100"
    message = {
        "queue": "a.b", "partition": "ü", "payload": None, "transaction_id": "t", "headers": headers, "trace_id": trace,
    }  # fmt: skip
    (result,) = call(mq, "push", messages=Jsonb([message]))
    (got,) = pop(mq, "a.b")
    assert (got.queue, got.partition, got.offset, got.payload) == ("a.b", "ü", 0, None)
    assert (got.headers, got.transaction_id, str(got.trace_id), got.attempt) == (headers, "t", trace, 1)
    assert (got.id, got.partition_id, got.created_at) == (result.id, result.partition_id, result.created_at)
    assert (call(mq, "partition_of", id=got.id), call(mq, "offset_of", id=got.id)) == ([(got.partition_id,)], [(0,)])
    labels = mq.execute("SELECT namespace, task, semantics FROM skep.queues WHERE name = 'a.b'").fetchone()
    assert labels == ("a", "b", "mixed")


def in_random_order(
    connection: psycopg.Connection, dice: random.Random, barrier: threading.Barrier, turns: list[list]
) -> list[str]:
    """Push to some of the partitions in random order, in turns with the other producers; return the errors."""
    wrong = []
    for partitions in turns:
        chosen = dice.sample(partitions, dice.randint(1, len(partitions)))
        barrier.wait(PATIENCE)
        try:
            push_to(connection, [(queue, name, None) for queue, name in chosen])
        except psycopg.Error as error:
            wrong.append(f"{error.sqlstate} {error}")
    return wrong


@pytest.mark.parametrize("exist", [True, False], ids=["partitions_exist", "partitions_are_created"])
def test_pushes_to_many_partitions_in_any_order_never_deadlock(connect: Connect, *, exist: bool):
    """Eight producers name the same partitions and queues in different orders (scenario L4)."""
    turns = [
        [(f"{name}{'' if exist else turn // 4}", f"{n}{'' if exist else turn}") for name in "ab" for n in range(4)]
        for turn in range(40)
    ]
    if exist:
        push_to(connect(), [(queue, name, "first") for queue, name in turns[0]])
    barrier = threading.Barrier(8)
    jobs = [partial(in_random_order, connect(), random.Random(n), barrier, turns) for n in range(8)]
    assert [error for errors in at_once(*jobs) for error in errors] == []
    assert broken(connect()) == {}


def test_a_clock_set_back_never_decreases_created_at(mq: psycopg.Connection):
    """The stored times are an hour ahead of the clock, as after a step backwards (scenario L9)."""
    (before,) = push(mq, "q", "before")
    pass_time(mq, -3600)
    ahead = mq.execute("SELECT created_at FROM skep.messages").fetchall()[0][0]
    assert ahead > before.created_at
    results = push(mq, "q", "after", "after")
    assert {result.created_at for result in results} == {ahead}
    stored = mq.execute('SELECT created_at FROM skep.messages ORDER BY "offset"').fetchall()
    assert stored == [(ahead,)] * 3
    (fresh,) = push(mq, "q", "fresh", partition="other")
    assert fresh.created_at < ahead  # only the partition that is ahead keeps its time
    assert broken(mq) == {}


def test_a_clock_set_back_does_not_withhold_messages(mq: psycopg.Connection):
    """Messages stored before the step or pushed after it are delivered at once, in known and in new partitions.

    Scenario l9.
    """
    push(mq, "q", "done", partition="known")
    assert take(mq, "q") == ["done"]
    push(mq, "q", "before", partition="unknown")
    pass_time(mq, -3600)
    push(mq, "q", "after", partition="unknown")
    push(mq, "q", "after", partition="known")
    assert sorted(delivery.payload for delivery in drain(mq, "q")) == ["after", "after", "before"]
    assert lag(mq) == {"known": 0, "unknown": 0}


def test_a_clock_set_back_does_not_hold_back_returned_messages(mq: psycopg.Connection):
    """A message that failed before the step is delivered after its delay, not when the clock has caught up.

    Scenario l9.
    """
    configure(mq, "q", retry_delay=5)
    push(mq, "q", "a", "b")
    call(mq, "fail", lease=pop(mq, "q", batch=1)[0].lease, error="no")
    pass_time(mq, -3600)
    assert pop(mq, "q") == []
    pass_time(mq, 7)
    assert [(delivery.payload, delivery.attempt) for delivery in pop(mq, "q", batch=10)] == [("a", 2)]
    assert broken(mq) == {}


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_clock_set_back_does_not_prolong_a_dead_consumers_lease(mq: psycopg.Connection, concurrency: int):
    """It ends when it would have ended; other messages of a shared partition are delivered meanwhile (scenario L9)."""
    configure(mq, "q", concurrency=concurrency)
    push(mq, "q", "a", "b")
    pop(mq, "q", batch=1, lease_time=60)
    pass_time(mq, -3600)
    assert [delivery.payload for delivery in pop(mq, "q", batch=1, lease_time=600)] == ["a", "b"][1:concurrency]
    pass_time(mq, 61)
    assert [(delivery.payload, delivery.attempt) for delivery in pop(mq, "q", batch=1)] == [("a", 2)]
    assert broken(mq) == {}


def test_a_clock_set_back_leaves_leases_unharmed(mq: psycopg.Connection):
    """A lease from before the step can be acknowledged and extended, and no other consumer gets its messages.

    Scenario l9.
    """
    push(mq, "q", "a", "b")
    leased = pop(mq, "q", batch=1, lease_time=60)
    pass_time(mq, -3600)
    assert pop(mq, "q") == []
    deadline = mq.execute("SELECT expires_at FROM skep.leases").fetchall()[0][0]
    assert call(mq, "extend", lease=leased[0].lease, seconds=5)[0][0] == deadline  # never shortened
    ack(mq, leased)
    assert lag(mq) == {"Default": 1}
    assert broken(mq) == {}
