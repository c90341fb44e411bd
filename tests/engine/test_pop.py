"""The result of a pop: how many messages, from how many partitions, from which queues, and what stays behind."""

import psycopg
import pytest

from tests.engine.acks import as_batch, dead_letters, one_by_one, progress, runs
from tests.engine.verbs import ack, broken, call, configure, lag, pass_time, pop, push, refused

Q = "orders"


@pytest.mark.parametrize("batch", [1, 3, 5, 100])
def test_a_pop_returns_up_to_a_batch_in_order(conn: psycopg.Connection, batch: int):
    """At most as many as requested, in offset order (scenario C1)."""
    push(conn, Q, *range(12))
    offsets = [run for run, _ in runs(conn, Q, batch=batch)]
    assert offsets == [list(range(first, min(first + batch, 12))) for first in range(0, 12, batch)]


def test_a_batch_over_several_partitions(mq: psycopg.Connection):
    """The batch size is the total; the partitions keep their order; each has a lease of its own."""
    for partition in "abc":
        push(mq, Q, *range(5), partition=partition)
    batch = pop(mq, Q, batch=7, partitions=2)
    assert [(message.partition, message.offset) for message in batch] == [
        *(("a", offset) for offset in range(5)), ("b", 0), ("b", 1),
    ]  # fmt: skip
    assert len({message.lease for message in batch}) == 2
    assert [(message.partition, message.offset) for message in pop(mq, Q, batch=100, partitions=10)] == [
        ("c", offset) for offset in range(5)
    ]
    ack(mq, batch)
    assert lag(mq) == {"a": 0, "b": 3, "c": 5}


def test_a_full_batch_leaves_the_other_partitions_alone(mq: psycopg.Connection):
    for partition in "ab":
        push(mq, Q, *range(5), partition=partition)
    assert [message.partition for message in pop(mq, Q, batch=5, partitions=2)] == ["a"] * 5
    assert [message.partition for message in pop(mq, Q, batch=5, partitions=2)] == ["b"] * 5


def test_a_batch_of_returned_and_new_messages(mq: psycopg.Connection):
    """Returned messages of one partition and new ones of another share the total."""
    configure(mq, Q, partial_failure="retry", retry_delay=0)
    push(mq, Q, *range(6), partition="a")
    as_batch(mq, pop(mq, Q), "fcfcff")
    push(mq, Q, *range(3), partition="b")
    pass_time(mq, 0.25)
    batch = pop(mq, Q, batch=5, partitions=2)
    assert sorted((message.partition, message.offset, message.attempt) for message in batch) == [
        ("a", 0, 2), ("a", 2, 2), ("a", 4, 2), ("a", 5, 2), ("b", 0, 1),
    ]  # fmt: skip
    ack(mq, batch)
    assert broken(mq) == {}
    assert runs(mq, Q) == [([1, 2], 1)]
    assert lag(mq) == {"a": 0, "b": 0}


def test_half_of_a_returned_run_fills_its_share_of_the_batch(mq: psycopg.Connection):
    """The first half is delivered; completed messages in the second half make no room in the batch."""
    configure(mq, Q, lease_time=10)
    for partition in "ab":
        push(mq, Q, *range(3), partition=partition)
    one_by_one(mq, pop(mq, Q, batch=6, partitions=2), "..c..c")
    pass_time(mq, 11)
    assert [row.offset for row in pop(mq, Q, batch=1, partitions=2)] == [0]
    assert broken(mq) == {}


def test_a_batch_counts_messages_and_not_offsets(mq: psycopg.Connection):
    """Completed messages between returned ones take no room from the next partition."""
    configure(mq, Q, partial_failure="retry", retry_delay=0)
    push(mq, Q, *range(6), partition="a")
    as_batch(mq, pop(mq, Q), "fcfcff")
    push(mq, Q, 0, partition="b")
    ack(mq, pop(mq, Q, partition="b"))
    push(mq, Q, *range(1, 4), partition="b")
    batch = pop(mq, Q, batch=6, partitions=2)
    assert [(message.partition, message.offset) for message in batch] == [
        ("a", 0), ("a", 2), ("a", 4), ("a", 5), ("b", 1), ("b", 2),
    ]  # fmt: skip


def test_each_partition_of_a_lease_gets_its_own_verdict(mq: psycopg.Connection):
    """All failed in one partition, all completed in another, mixed in a third: three verdicts (scenario C1)."""
    configure(mq, Q, retry_delay=0)
    for partition in "abc":
        push(mq, Q, 0, 1, partition=partition)
    as_batch(mq, pop(mq, Q, partitions=3), "ffcccf")
    assert [(row.partition, row.offset) for row in dead_letters(mq, Q)] == [("c", 1)]
    assert lag(mq) == {"a": 2, "b": 0, "c": 0}
    assert [(message.partition, message.attempt) for message in pop(mq, Q)] == [("a", 2), ("a", 2)]


def test_one_partition_by_name(mq: psycopg.Connection):
    for partition in "abc":
        push(mq, Q, partition, partition=partition)
    assert [message.payload for message in pop(mq, Q, partition="b")] == ["b"]
    assert pop(mq, Q, partition="nowhere") == []
    assert {message.payload for message in pop(mq, Q, partitions=10)} == {"a", "c"}


def test_pop_of_an_empty_queue(mq: psycopg.Connection):
    assert pop(mq, "unknown") == []
    configure(mq, Q)
    assert pop(mq, Q) == []
    assert pop(mq, Q, partition="x") == []


def test_auto_ack_moves_the_cursor_at_delivery(mq: psycopg.Connection):
    """With auto_ack there is nothing to acknowledge, nothing is delivered again, and the lease has already ended."""
    for partition in "ab":
        push(mq, Q, *range(3), partition=partition)
    batch = pop(mq, Q, batch=2, auto_ack=True)
    assert [message.offset for message in batch] == [0, 1]
    assert lag(mq) == {"a": 1, "b": 3}
    before = progress(mq)
    with refused("SK003"):
        call(mq, "fail", lease=batch[0].lease, error="too late", id=batch[0].id)
    assert progress(mq) == before
    assert len(pop(mq, Q, partitions=2, auto_ack=True)) == 4
    assert pop(mq, Q) == []
    assert lag(mq) == {"a": 0, "b": 0}
    assert mq.execute("SELECT count(*) FROM skep.leases").fetchone() == (0,)


def test_auto_ack_of_returned_messages(mq: psycopg.Connection):
    configure(mq, Q, partial_failure="retry", retry_delay=0)
    push(mq, Q, *range(4))
    one_by_one(mq, pop(mq, Q, batch=3), "fcf")
    assert [message.offset for message in pop(mq, Q, auto_ack=True)] == [0, 2]
    assert runs(mq, Q) == [([3], 1)]


def test_auto_ack_does_not_depend_on_the_lease_time(mq: psycopg.Connection):
    """A delivery that takes longer than its lease is still acknowledged, once."""
    push(mq, Q, *range(5_000))
    assert len(pop(mq, Q, batch=5_000, auto_ack=True, lease_time=0.001)) == 5_000
    assert lag(mq) == {"Default": 0}


def test_a_namespace_and_a_task(mq: psycopg.Connection):
    """Filters: every queue of a namespace, of a task, or of both."""
    for queue in ("shop.mail", "shop.bill", "bank.mail"):
        push(mq, queue, queue)
    wanted = [
        ({"namespace": "shop"}, {"shop.mail", "shop.bill"}),
        ({"task": "mail"}, {"shop.mail", "bank.mail"}),
        ({"namespace": "shop", "task": "mail"}, {"shop.mail"}),
        ({"namespace": "none"}, set()),
    ]
    for number, (filters, queues) in enumerate(wanted):
        batch = pop(mq, None, f"group {number}", partitions=10, **filters)
        assert {message.payload for message in batch} == queues


def test_priority_between_queues(mq: psycopg.Connection):
    """The highest priority first, no matter which was pushed first or waits longest; then the next."""
    for queue, priority in (("n.low", -1), ("n.middle", 0), ("n.high", 5)):
        configure(mq, queue, priority=priority)
        for partition in "ab":
            push(mq, queue, *range(2), partition=partition)
    served = []
    while batch := pop(mq, None, batch=1, namespace="n"):
        served.append(batch[0].queue)
        ack(mq, batch)
    assert served == ["n.high"] * 4 + ["n.middle"] * 4 + ["n.low"] * 4


def test_priority_across_the_partitions_of_one_pop(mq: psycopg.Connection):
    for queue, priority in (("n.low", 0), ("n.high", 1)):
        configure(mq, queue, priority=priority)
        for partition in "ab":
            push(mq, queue, 0, partition=partition)
    batch = pop(mq, None, batch=3, partitions=4, namespace="n")
    assert sorted(message.queue for message in batch) == ["n.high", "n.high", "n.low"]


def test_a_pop_and_a_push_in_one_transaction(mq: psycopg.Connection, module_database_url: str):
    """The next pop finds messages that the same transaction pushed after its first pop."""
    push(mq, Q, 0, partition="a")
    ack(mq, pop(mq, Q))
    assert pop(mq, Q) == []
    with psycopg.connect(module_database_url) as other:
        other.execute("SELECT pg_current_xact_id()")
        push(mq, Q, 0, partition="b")  # a transaction that began later and ended first
        assert [message.partition for message in pop(other, Q)] == ["b"]
        push(other, Q, 1, partition="a")
        push(other, Q, 0, partition="c")
        other.commit()
    assert broken(mq) == {}
    assert {message.partition for message in pop(mq, Q, partitions=10)} == {"a", "c"}
