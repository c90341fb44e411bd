"""Deleted messages keep their offsets, are never delivered, and nothing waits for them."""

from collections.abc import Callable, Iterable

import psycopg
import pytest

from tests.engine.acks import WAYS, as_batch, dead_offsets, one_by_one, runs
from tests.engine.verbs import Row, ack, broken, call, configure, drain, lag, pass_time, pop, push, refused

Q = "orders"
LEASE_SECONDS = 300


def delete(connection: psycopg.Connection, partition: list[Row], offsets: Iterable[int]) -> None:
    for offset in offsets:
        query = "SELECT skep.delete_message(skep.message_id(%s, %s))"
        assert connection.execute(query, [partition[offset].partition_id, offset]).fetchone() == (True,)


def test_a_deleted_message_is_skipped(mq: psycopg.Connection):
    """The others are delivered in order, with their offsets."""
    delete(mq, push(mq, Q, *range(6)), [0, 2, 3, 5])
    assert runs(mq, Q) == [([1, 4], 1)]
    assert lag(mq) == {"Default": 0}
    assert broken(mq) == {}


def test_lag_is_exact(mq: psycopg.Connection):
    """Lag is the distance of two offsets: a tombstone counts until the cursor has passed it."""
    partition = push(mq, Q, *range(6))
    ack(mq, pop(mq, Q, batch=1))
    delete(mq, partition, [0, 3])
    assert lag(mq) == {"Default": 5}
    ack(mq, pop(mq, Q, batch=2))
    assert lag(mq) == {"Default": 3}
    ack(mq, pop(mq, Q, batch=3))
    assert lag(mq) == {"Default": 0}


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_a_partition_of_tombstones_does_not_block(mq: psycopg.Connection, batch: int):
    """A pop continues with live messages: in the same partition, in another, and pushed later."""
    delete(mq, push(mq, Q, *range(40), partition="dead"), range(40))
    push(mq, Q, "alive", partition="other")
    assert [message.payload for message in drain(mq, Q, batch=batch)] == ["alive"]
    push(mq, Q, "at last", partition="dead")
    assert [message.payload for message in drain(mq, Q, batch=batch)] == ["at last"]
    assert lag(mq) == {"dead": 0, "other": 0}
    assert broken(mq) == {}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("partition", [None, "Default"])
def test_a_message_behind_many_tombstones(mq: psycopg.Connection, batch: int, partition: str | None):
    """An empty pop means that nothing is ready, not that the search stopped early."""
    delete(mq, push(mq, Q, *range(31)), range(30))
    assert [message.offset for message in pop(mq, Q, batch=batch, partition=partition)] == [30]


def test_ten_thousand_tombstones_are_passed_quickly(mq: psycopg.Connection):
    """The cost of a pop does not grow with the square of the deleted messages."""
    push(mq, Q, *range(10_001))
    mq.execute('UPDATE skep.messages SET payload = NULL, headers = NULL WHERE "offset" < 10_000')
    mq.execute("SET statement_timeout = '5s'")
    assert [message.offset for message in pop(mq, Q, batch=1)] == [10_000]


def test_partitions_of_tombstones_only(mq: psycopg.Connection):
    """The first pop finds the only partition with a message among many of them."""
    for number in range(10):
        delete(mq, push(mq, Q, 0, partition=f"partition {number}"), [0])
    push(mq, Q, "alive", partition="last")
    assert [message.payload for message in pop(mq, Q)] == ["alive"]


@pytest.mark.parametrize("acknowledge", WAYS)
@pytest.mark.parametrize(("pattern", "dead", "again"), [
    ("ccc", [], []),
    ("ccf", [2], []),
    ("cfc", [], []),  # there is nothing left to copy
    ("cdc", [], []),
    ("fff", [], [0, 2]),
])  # fmt: skip
def test_a_message_deleted_while_leased(
    mq: psycopg.Connection, acknowledge: Callable[..., None], pattern: str, dead: list[int], again: list[int]
):
    """Its consumer acknowledges it like the others; it is not delivered again and is no dead letter."""
    configure(mq, Q, retry_delay=0)
    partition = push(mq, Q, *range(4))
    batch = pop(mq, Q, batch=3)
    delete(mq, partition, [1])
    acknowledge(mq, batch, pattern)
    assert runs(mq, Q) == ([(again, 2)] if again else []) + [([3], 1)]
    assert dead_offsets(mq, Q) == dead
    assert lag(mq) == {"Default": 0}
    assert broken(mq) == {}


def test_a_whole_leased_batch_is_deleted(mq: psycopg.Connection):
    """Its consumer crashes: nothing of it is delivered again, and nothing is stuck."""
    partition = push(mq, Q, *range(4))
    pop(mq, Q, batch=3)
    delete(mq, partition, [0, 1, 2])
    pass_time(mq, LEASE_SECONDS + 1)
    assert runs(mq, Q) == [([3], 1)]
    assert lag(mq) == {"Default": 0}
    assert dead_offsets(mq, Q) == []


def test_a_deleted_message_is_not_a_success(mq: psycopg.Connection):
    """Beside a tombstone, all failed is still all failed (scenario C1)."""
    configure(mq, Q, retry_delay=0)
    delete(mq, push(mq, Q, *range(3)), [1])
    one_by_one(mq, pop(mq, Q), "ff")
    assert dead_offsets(mq, Q) == []
    assert runs(mq, Q) == [([0, 2], 2)]


@pytest.mark.parametrize("acknowledge", [one_by_one, as_batch])
def test_completing_a_deleted_message_is_not_a_success(mq: psycopg.Connection, acknowledge: Callable[..., None]):
    """All messages that are left have failed: they are retried, also if their acks arrive later."""
    configure(mq, Q, retry_delay=0)
    partition = push(mq, Q, *range(3))
    batch = pop(mq, Q, batch=3)
    delete(mq, partition, [0])
    acknowledge(mq, batch, "cff")
    assert dead_offsets(mq, Q) == []
    assert runs(mq, Q) == [([1, 2], 2)]


def test_the_lease_ends_when_only_deleted_messages_have_no_ack(mq: psycopg.Connection):
    """A released lease is then one with all acks: its attempt counts."""
    configure(mq, Q, retry_delay=0)
    partition = push(mq, Q, *range(4))
    batch = pop(mq, Q, batch=2)
    delete(mq, partition, [1])
    one_by_one(mq, batch, "f.")
    with refused("SK003"):
        call(mq, "extend", lease=batch[0].lease)
    batch = pop(mq, Q, batch=1)
    assert [(message.offset, message.attempt) for message in batch] == [(0, 2)]
    ack(mq, batch)
    batch = pop(mq, Q, batch=2)
    one_by_one(mq, batch, "f.")
    delete(mq, partition, [3])
    call(mq, "release", lease=batch[0].lease)
    assert runs(mq, Q) == [([2], 2)]


def test_a_message_deleted_between_two_deliveries(mq: psycopg.Connection):
    """It is not delivered again; the others are, with their attempt (scenario C3)."""
    configure(mq, Q, retry_delay=0)
    partition = push(mq, Q, *range(4))
    as_batch(mq, pop(mq, Q, batch=3), "fff")
    delete(mq, partition, [0, 1])
    assert runs(mq, Q) == [([2], 2), ([3], 1)]


def test_several_partitions_with_tombstones(mq: psycopg.Connection):
    for partition in "abc":
        pushed = push(mq, Q, *range(3), partition=partition)
        delete(mq, pushed, {"a": [0, 1, 2], "b": [1], "c": [2]}[partition])
    batch = pop(mq, Q, partitions=3)
    assert [(message.partition, message.offset) for message in batch] == [("b", 0), ("b", 2), ("c", 0), ("c", 1)]
    ack(mq, batch)
    assert pop(mq, Q, partitions=3) == []  # passes those after the last message
    assert lag(mq) == {"a": 0, "b": 0, "c": 0}


def test_auto_ack_beside_tombstones(mq: psycopg.Connection):
    delete(mq, push(mq, Q, *range(4)), [0, 2, 3])
    assert [message.offset for message in pop(mq, Q, auto_ack=True)] == [1]
    assert pop(mq, Q) == []  # passes those after the last message
    assert lag(mq) == {"Default": 0}
    assert broken(mq) == {}


def test_no_lease_of_deleted_messages_only(mq: psycopg.Connection):
    """The batch has room for one message, and the next one was deleted: a lease would never end."""
    push(mq, Q, *range(3), partition="a")
    delete(mq, push(mq, Q, *range(3), partition="b"), [0])
    ack(mq, batch := pop(mq, Q, batch=4, partitions=2))
    batch += pop(mq, Q, batch=4)
    assert [(row.partition, row.offset) for row in batch] == [("a", 0), ("a", 1), ("a", 2), ("b", 1), ("b", 2)]


@pytest.mark.parametrize("partition", [None, "Default"])
@pytest.mark.parametrize(("pattern", "batch"), [(".cc", 3), (".c.", 1), ("..c", 1)])
def test_no_lease_of_deleted_and_completed_messages(
    mq: psycopg.Connection, partition: str | None, pattern: str, batch: int
):
    """The first message is deleted before it is delivered again, and those behind it are completed."""
    pushed = push(mq, Q, *range(4))
    one_by_one(mq, leased := pop(mq, Q, batch=3), pattern)
    call(mq, "release", lease=leased[0].lease)
    delete(mq, pushed, [0])
    came = [row.offset for row in pop(mq, Q, batch=batch, partition=partition)]
    assert came == [offset for offset in (1, 2, 3) if pattern[offset:][:1] != "c"][:1]


def test_a_shared_run_with_nothing_left_hides_no_other(mq: psycopg.Connection):
    """A returned run has only completed and deleted messages: the pop that finds it gets the next ones."""
    configure(mq, Q, concurrency=3)
    partition = push(mq, Q, *range(3))
    one_by_one(mq, leased := pop(mq, Q, batch=2), ".c")
    call(mq, "release", lease=leased[0].lease)
    delete(mq, partition, [0])
    assert [row.offset for row in pop(mq, Q, partition="Default")] == [2]
    assert broken(mq) == {}


def test_no_lease_of_a_shared_partition_is_empty(mq: psycopg.Connection):
    """Several leases of one partition in a pop: each has a message that is not deleted."""
    configure(mq, Q, concurrency=3)
    delete(mq, push(mq, Q, *range(6)), [0, 1, 3])
    assert [row.offset for row in pop(mq, Q, batch=1, partitions=3)] == [2]
    assert [row.offset for row in pop(mq, Q, batch=1, partitions=3)] == [4]
    assert [row.offset for row in pop(mq, Q, batch=1)] == [5]
    assert broken(mq) == {}


def test_a_shared_partition_passes_deleted_messages_beside_leases(mq: psycopg.Connection):
    configure(mq, Q, concurrency=3)
    partition = push(mq, Q, *range(4))
    leased = pop(mq, Q, batch=1)
    delete(mq, partition, [1, 2])
    assert [row.offset for row in pop(mq, Q, batch=1)] == [3]
    ack(mq, leased)
    assert broken(mq) == {}


def test_delete_twice_and_delete_unknown(mq: psycopg.Connection):
    """Both return false."""
    partition = push(mq, Q, 0)
    delete(mq, partition, [0])
    for offset in (0, 1):
        query = "SELECT skep.delete_message(skep.message_id(%s, %s))"
        assert mq.execute(query, [partition[0].partition_id, offset]).fetchone() == (False,)


def test_a_duplicate_of_a_deleted_message(mq: psycopg.Connection):
    partition = push(mq, Q, 0, transaction_ids=["t"])
    delete(mq, partition, [0])
    assert [(row.status, row.offset) for row in push(mq, Q, 0, transaction_ids=["t"])] == [("duplicate", 0)]
    assert call(mq, "pop", queue=Q) == []


def test_a_namespace_begins_with_a_deleted_message(mq: psycopg.Connection):
    delete(mq, push(mq, "shop.orders", *range(3)), [0])
    assert [row.offset for row in pop(mq, None, "late", namespace="shop", batch=1)] == [1]


def test_a_shared_run_with_nothing_left_ends_without_a_lease(mq: psycopg.Connection):
    """Also if its partition is only popped by name: its lag would stay, and retention would wait for it."""
    configure(mq, Q, concurrency=3)
    partition = push(mq, Q, *range(2))
    leased = pop(mq, Q, batch=2, partition="Default")
    call(mq, "release", lease=leased[0].lease)
    delete(mq, partition, [0, 1])
    assert pop(mq, Q, partition="Default") == []
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})
