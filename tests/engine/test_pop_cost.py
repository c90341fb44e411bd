"""The cost of a pop in rows read does not depend on partitions, messages, groups and consumed messages."""

from typing import Any

import psycopg
import pytest

from tests.engine.plans import explained
from tests.engine.verbs import ack, call, configure, drain, pop, push, push_to, take


def cost(connection: psycopg.Connection, **options: Any) -> int:
    """Return the rows that a pop of three messages reads, with cached plans and a short ready list."""
    for _ in range(2):
        push(connection, "q", 1, 2, 3, partition="busy")
        assert len(take(connection, "q", **options)) == 3
        assert take(connection, "q", **options) == []
    push(connection, "q", 1, 2, 3, partition="busy")
    leased = []
    plans = explained(connection, lambda: leased.extend(pop(connection, "q", **options)), analyze=True)
    ack(connection, leased)
    assert len(leased) == 3
    return sum(plan.rows_touched() for plan in plans)


def idle_partitions(connection: psycopg.Connection, number: int) -> None:
    """Create partitions that the group has drained."""
    if number:
        push_to(connection, [("q", f"idle {n}", n) for n in range(number)])
        drain(connection, "q", partitions=10_000, batch=100_000)


@pytest.mark.parametrize("options", [{}, {"partition": "busy"}], ids=["wildcard", "by_name"])
def test_idle_partitions_cost_nothing(mq: psycopg.Connection, options: dict):
    """10 and 2,000 drained partitions beside a busy one (scenario L7)."""
    idle_partitions(mq, 10)
    few = cost(mq, **options)
    idle_partitions(mq, 2_000)
    while pop(mq, "q"):
        pass
    assert cost(mq, **options) <= few + 10


def test_messages_cost_nothing(mq: psycopg.Connection):
    """100 and 20,000 messages in the partition, nearly all consumed (scenario L7)."""
    push(mq, "q", *range(100), partition="busy")
    drain(mq, "q")
    few = cost(mq)
    push(mq, "q", *range(20_000), partition="busy")
    drain(mq, "q", batch=10_000)
    assert cost(mq) <= few + 5


def test_consumed_messages_make_no_difference(mq: psycopg.Connection):
    """A partition of 20,000 messages of which 1 % are consumed, and the same with 99 % (scenario L7)."""
    push(mq, "q", *range(20_000), partition="busy")
    costs = []
    for consumed in (200, 19_600):
        take(mq, "q", batch=consumed)
        take(mq, "q")  # discovery is due, because that took a while
        leased: list = []
        plans = explained(mq, lambda leased=leased: leased.extend(pop(mq, "q", batch=3)), analyze=True)
        ack(mq, leased)
        costs.append(sum(plan.rows_touched() for plan in plans))
    assert abs(costs[1] - costs[0]) <= 10


def test_other_groups_and_queues_cost_nothing(mq: psycopg.Connection):
    """Twenty groups with work, a hundred queues beside this one (scenarios L7, L8)."""
    push(mq, "q", 0, partition="busy")
    take(mq, "q")
    alone = cost(mq)
    push_to(mq, [(f"other {n}", "p", n) for n in range(100)])
    for number in range(20):
        pop(mq, "q", f"group {number}", batch=1)
    assert cost(mq) <= alone + 5


def test_busy_partitions_cost_no_more_than_the_candidates(mq: psycopg.Connection):
    """40 and 1,000 partitions in the ready list: a pop reads the front only (scenario L7)."""
    costs = []
    for partitions in (40, 1_000):
        push_to(mq, [("q", f"{partitions} {n}", n) for n in range(partitions)])
        take(mq, "q")
        plans = explained(mq, lambda: take(mq, "q"), analyze=True)
        costs.append(sum(plan.rows_touched() for plan in plans))
    assert costs[1] <= costs[0] + 10


@pytest.mark.parametrize("waiting", ["leased", "retried"])
def test_waiting_partitions_cost_nothing(mq: psycopg.Connection, waiting: str):
    """Partitions that are leased or wait for a retry do not slow down a ready one (scenarios C9, L7)."""
    configure(mq, "q", retry_delay=3600)
    hold(mq, waiting, 5)
    few = cost(mq)
    hold(mq, waiting, 400)
    assert cost(mq) <= few + 10


def hold(connection: psycopg.Connection, waiting: str, partitions: int) -> None:
    """Bring this many partitions into a state in which their messages cannot be delivered now."""
    push_to(connection, [("q", f"{waiting} {partitions} {n}", n) for n in range(partitions)])
    leased = pop(connection, "q", partitions=partitions, batch=partitions)
    assert len(leased) == partitions
    if waiting == "retried":
        call(connection, "fail_all", leases=[message.lease for message in leased], error="oops")
