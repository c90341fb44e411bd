"""The ready list: the partition that waits longest is served first, within a queue and across queues of a namespace."""

import psycopg

from tests.engine.verbs import configure, pass_time, push, push_to, take


def serve(connection: psycopg.Connection, times: int, **scope: str) -> list[str]:
    """Take one message after the other.

    Return the partitions in the order they were served, as their payloads name them.
    """
    return [take(connection, scope.get("queue"), batch=1, namespace=scope.get("namespace"))[0] for _ in range(times)]


def test_partitions_of_a_queue_take_turns(mq: psycopg.Connection):
    """Three rounds over ten partitions; then one that was empty meanwhile and a new one."""
    partitions = [f"partition {n}" for n in range(10)]
    push_to(mq, [("q", partition, partition) for partition in partitions for _ in range(3)])
    assert serve(mq, 10, queue="q") == partitions
    assert take(mq, "q", partition="partition 4", batch=1) == ["partition 4"]
    rest = [partition for partition in partitions if partition != "partition 4"]
    assert serve(mq, 19, queue="q") == [*rest, "partition 4", *rest]
    push(mq, "q", "again", partition="partition 7")
    pass_time(mq, 1)
    push(mq, "q", "new", partition="partition 10")
    assert {*serve(mq, 2, queue="q")} == {"new", "again"}


def test_partitions_of_a_namespace_take_turns_across_queues(mq: psycopg.Connection):
    """The queue of a partition gives it no advantage."""
    partitions = [("ns.b", "1"), ("ns.a", "2"), ("ns.c", "3"), ("ns.a", "4"), ("ns.b", "5"), ("ns.c", "6")]
    for queue, partition in partitions:
        push(mq, queue, partition, partition, partition=partition)
    order = serve(mq, 12, namespace="ns")
    assert sorted(order[:6]) == sorted(order[6:]) == [partition for _, partition in partitions]


def test_a_queue_of_higher_priority_comes_first(mq: psycopg.Connection):
    """Queues are served by priority, partitions within a queue in turns."""
    for queue, priority in [("ns.low", -1), ("ns.high", 5), ("ns.normal", 0)]:
        configure(mq, queue, priority=priority)
        push_to(mq, [(queue, partition, f"{queue} {partition}") for partition in ("x", "y") for _ in range(2)])
    order = serve(mq, 12, namespace="ns")
    assert order == [
        f"{queue} {partition}" for queue in ("ns.high", "ns.normal", "ns.low") for partition in ("x", "y", "x", "y")
    ]
