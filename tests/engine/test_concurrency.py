"""Many workers of one group, on partitions with strict order and on shared partitions."""

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from tests.engine.acks import ack_one, dead_offsets, one_by_one, runs
from tests.engine.threads import PATIENCE, at_once, until
from tests.engine.verbs import Row, ack, broken, call, configure, drain, lag, pass_time, pop, push, push_to

Q = "orders"
HOUR = 3600
LEASE_SECONDS = 300


class Witness:
    """Records what workers hold, and fails if two hold the same message or a partition is read out of order."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.lock = threading.Lock()
        self.leased: set[tuple[str, int]] = set()
        self.history: dict[str, list[int]] = defaultdict(list)
        self.most_leased = 0

    def take(self, batch: list[Row]) -> None:
        addresses = {(message.partition, message.offset) for message in batch}
        with self.lock:
            assert not self.leased & addresses
            self.leased |= addresses
            self.most_leased = max(self.most_leased, len(self.leased))
            for message in batch:
                self.history[message.partition].append(message.offset)

    def release(self, batch: list[Row]) -> None:
        with self.lock:
            self.leased -= {(message.partition, message.offset) for message in batch}

    def finished(self) -> bool:
        return sum(map(len, self.history.values())) >= self.expected


def work(connection: psycopg.Connection, witness: Witness, batch: int) -> None:
    """Pop and acknowledge, half of the batches message by message, until every message was seen."""

    def once() -> bool:
        deliveries = pop(connection, Q, batch=batch)
        witness.take(deliveries)
        for message in deliveries[::2]:
            ack_one(connection, message, "c")
        witness.release(deliveries)
        for lease in {message.lease for message in deliveries[1:]}:
            call(connection, "ack", lease=lease)
        return witness.finished()

    until(once, "every message to be seen")


@pytest.mark.timeout(PATIENCE)
def test_two_workers_never_hold_the_same_message(connect: Callable[..., psycopg.Connection]):
    """Four workers on five partitions: each message once, each partition in order (scenario C8)."""
    witness = Witness(600)
    with connect() as producer:
        pop(producer, Q)
        push_to(producer, [(Q, f"partition {number % 5}", number) for number in range(600)])
        at_once(*[partial(work, connect(), witness, 4) for _ in range(4)])
        assert witness.history == {f"partition {number}": list(range(120)) for number in range(5)}
        assert {*lag(producer).values()} == {0}
        assert broken(producer) == {}


@pytest.mark.timeout(PATIENCE)
def test_eight_workers_share_a_partition(connect: Callable[..., psycopg.Connection]):
    """Eight workers drain one partition, each message once (scenario C11)."""
    witness = Witness(800)
    with connect() as producer:
        configure(producer, Q, concurrency=8)
        pop(producer, Q)
        push(producer, Q, *range(800))
        at_once(*[partial(work, connect(), witness, 5) for _ in range(8)])
        assert sorted(witness.history["Default"]) == list(range(800))
        assert lag(producer) == {"Default": 0}
        assert broken(producer) == {}


def test_a_partition_has_as_many_leases_as_the_queue_allows(conn: psycopg.Connection):
    """Eight disjoint runs are leased at once, and a ninth pop gets nothing (scenario C11)."""
    configure(conn, Q, concurrency=8)
    push(conn, Q, *range(100))
    batches = [pop(conn, Q, batch=10) for _ in range(8)]
    assert [[message.offset for message in batch] for batch in batches] == [
        list(range(first, first + 10)) for first in range(0, 80, 10)
    ]
    assert pop(conn, Q) == []
    assert pop(conn, Q, partition="Default") == []
    ack(conn, batches[5])
    assert [message.offset for message in pop(conn, Q, batch=10)] == list(range(80, 90))
    assert pop(conn, Q) == []
    assert broken(conn) == {}


def test_the_cursor_is_the_start_of_the_lowest_unfinished_run(conn: psycopg.Connection):
    """Runs may finish in any order; the cursor waits for the lowest (scenario C11)."""
    configure(conn, Q, concurrency=8)
    push(conn, Q, *range(8))
    batches = [pop(conn, Q, batch=1) for _ in range(8)]
    lags = []
    for number in (3, 0, 1, 7, 2, 5, 4, 6):
        ack(conn, batches[number])
        lags.append(lag(conn)["Default"])
    assert lags == [8, 7, 6, 6, 4, 4, 2, 0]


def test_crashes_of_some_workers(conn: psycopg.Connection):
    """Messages of crashed workers are delivered again, completed ones are not, and the cursor is right throughout.

    Scenario c11.
    """
    configure(conn, Q, concurrency=8)
    push(conn, Q, *range(100))
    batches = [pop(conn, Q, batch=10) for _ in range(8)]
    for number in (1, 4, 7):
        ack(conn, batches[number])
    one_by_one(conn, batches[2], "cc.c......")
    for number in (3, 6):
        call(conn, "extend", lease=batches[number][0].lease, seconds=2 * HOUR)
    pass_time(conn, HOUR)
    lost = {*range(10), 22, *range(24, 30), *range(50, 60)}
    again = []
    while len(again) < len(lost) + 20:
        batch = pop(conn, Q, batch=10)
        again += [(message.offset, message.attempt) for message in batch]
        ack(conn, batch)
    assert sorted(again) == sorted([*((offset, 2) for offset in lost), *((offset, 1) for offset in range(80, 100))])
    assert lag(conn) == {"Default": 70}
    ack(conn, batches[3])
    assert lag(conn) == {"Default": 40}
    ack(conn, batches[6])
    assert lag(conn) == {"Default": 0}
    assert broken(conn) == {}


def test_all_workers_crash_at_once(conn: psycopg.Connection):
    """Eight leases expire together (scenario C11)."""
    configure(conn, Q, concurrency=8, retry_limit=0)
    push(conn, Q, *range(80))
    for _ in range(8):
        pop(conn, Q, batch=10)
    pass_time(conn, LEASE_SECONDS + 1)
    assert sorted(offset for run, _ in runs(conn, Q) for offset in run) == list(range(80))
    assert lag(conn) == {"Default": 0}
    assert dead_offsets(conn, Q) == []
    assert broken(conn) == {}


@pytest.mark.parametrize("others", [0, 1])
def test_a_waiting_retry_does_not_stop_a_shared_partition(conn: psycopg.Connection, others: int):
    """Without strict order, later messages are delivered while a failed one waits for its retry (scenario C11)."""
    configure(conn, Q, concurrency=4, retry_delay=HOUR)
    push(conn, Q, *range(6))
    failing = pop(conn, Q, batch=1)
    leased = [pop(conn, Q, batch=1) for _ in range(others)]
    one_by_one(conn, failing, "f")
    for batch in leased:
        ack(conn, batch)
    assert [message.offset for message in drain(conn, Q, batch=1)] == list(range(1 + others, 6))
    pass_time(conn, 2 * HOUR)
    assert runs(conn, Q) == [([0], 2)]


def test_a_shared_partition_with_nothing_left_is_discovered_after_a_push(mq: psycopg.Connection):
    """A partition whose messages are all leased delivers the next push (scenario C11)."""
    configure(mq, Q, concurrency=3)
    push(mq, Q, 0)
    pop(mq, Q)
    for offset in (1, 2):
        assert pop(mq, Q) == []
        push(mq, Q, offset)
        assert [message.offset for message in pop(mq, Q)] == [offset]
    push(mq, Q, 3)
    assert pop(mq, Q) == []
    assert broken(mq) == {}


def test_concurrency_can_be_raised_and_lowered(mq: psycopg.Connection):
    """The option applies from the next pop on (scenario C11)."""
    push(mq, Q, *range(10))
    leased = [pop(mq, Q, batch=1)]
    assert pop(mq, Q) == []
    configure(mq, Q, concurrency=3)
    leased += [pop(mq, Q, batch=1), pop(mq, Q, batch=1)]
    assert [batch[0].offset for batch in leased] == [0, 1, 2]
    configure(mq, Q, concurrency=1)
    for batch in leased:
        assert pop(mq, Q) == []
        ack(mq, batch)
    assert runs(mq, Q) == [(list(range(3, 10)), 1)]


def test_shared_partitions_retry_and_dead_letter(conn: psycopg.Connection):
    """The verdict table applies to each run by itself (scenario C11)."""
    configure(conn, Q, concurrency=3, retry_limit=1, retry_delay=0)
    push(conn, Q, *range(9))
    first, second, third = (pop(conn, Q, batch=3) for _ in range(3))
    one_by_one(conn, second, "fff")
    one_by_one(conn, third, "cfc")
    again = pop(conn, Q)
    assert [(message.offset, message.attempt) for message in again] == [(3, 2), (4, 2), (5, 2)]
    one_by_one(conn, again, "fff")
    assert dead_offsets(conn, Q) == [3, 4, 5, 7]
    assert lag(conn) == {"Default": 9}
    ack(conn, first)
    assert lag(conn) == {"Default": 0}
