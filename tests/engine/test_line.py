"""The ready list: the partition that waits longest is served first, within a queue and across queues of a namespace."""

import psycopg

from tests.engine.verbs import configure, pass_time, push, push_to, take


def serve(connection: psycopg.Connection, times: int, **scope: str) -> list[str]:
    """Take one message after the other; return the partitions in the order they were served, as their payloads name
    them."""
    return [take(connection, scope.get("queue"), batch=1, namespace=scope.get("namespace"))[0] for _ in range(times)]


def test_partitions_of_a_queue_take_turns(mq: psycopg.Connection):
    """Three rounds over ten partitions; then one that was empty meanwhile and a new one."""
    lanes = [f"lane {n}" for n in range(10)]
    push_to(mq, [("q", lane, lane) for lane in lanes for _ in range(3)])
    assert serve(mq, 10, queue="q") == lanes
    assert take(mq, "q", partition="lane 4", batch=1) == ["lane 4"]
    rest = [lane for lane in lanes if lane != "lane 4"]
    assert serve(mq, 19, queue="q") == [*rest, "lane 4", *rest]
    push(mq, "q", "again", partition="lane 7")
    pass_time(mq, 1)
    push(mq, "q", "new", partition="lane 10")
    assert {*serve(mq, 2, queue="q")} == {"new", "again"}


def test_partitions_of_a_namespace_take_turns_across_queues(mq: psycopg.Connection):
    """The queue of a partition gives it no advantage."""
    lanes = [("ns.b", "1"), ("ns.a", "2"), ("ns.c", "3"), ("ns.a", "4"), ("ns.b", "5"), ("ns.c", "6")]
    for queue, lane in lanes:
        push(mq, queue, lane, lane, partition=lane)
    order = serve(mq, 12, namespace="ns")
    assert sorted(order[:6]) == sorted(order[6:]) == [lane for _, lane in lanes]


def test_a_queue_of_higher_priority_comes_first(mq: psycopg.Connection):
    """Queues are served by priority, partitions within a queue in turns."""
    for queue, priority in [("ns.low", -1), ("ns.high", 5), ("ns.normal", 0)]:
        configure(mq, queue, priority=priority)
        push_to(mq, [(queue, lane, f"{queue} {lane}") for lane in ("x", "y") for _ in range(2)])
    order = serve(mq, 12, namespace="ns")
    assert order == [f"{queue} {lane}" for queue in ("ns.high", "ns.normal", "ns.low") for lane in ("x", "y", "x", "y")]
