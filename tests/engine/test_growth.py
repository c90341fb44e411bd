"""The cost of the hot path in buffers after a burst over many partitions, and in a namespace of many queues."""

from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from tests.engine.buffers import (
    ACK_LEASED,
    IN_READY_LIST,
    POP,
    POP_ALL,
    Measured,
    buffers,
    measure_drained,
    measure_namespace,
    push_to,
)
from tests.engine.verbs import ack, pop, push

Measure = Callable[[Callable[..., Measured], int], list[float]]
PARTITIONS = 5_000
POP_NAMED = """
    SELECT * FROM skep._queen_pop('q', %(group)s, %(sizes)s::integer[], %(sizes)s::integer[], %(names)s, NULL, NULL,
                                  NULL, false, NULL, NULL, false)
"""
LEASES = """
    SELECT g.group_name, count(r.lease_id) FROM skep.runs r JOIN skep.group_queues g ON g.id = r.group_queue_id
    GROUP BY 1
"""


@pytest.fixture
def measured(new_database: Callable[..., str], template: str) -> Measure:
    """Measure each size in a database of its own; the figures are in the order of the sizes."""

    def run(measure: Callable[..., Measured], size: int) -> list[float]:
        with closing(psycopg.connect(new_database(template), autocommit=True)) as connection:
            return list(measure(connection, size).values())

    return run


def test_pops_after_a_burst_cost_the_same(measured: Measure):
    """Beside 5,000 drained partitions, once they have left the ready list, a pop costs as much as beside ten."""
    few, many = measured(measure_drained, 10), measured(measure_drained, PARTITIONS)
    for small, large in zip(few[:2], many[:2], strict=True):
        assert large <= 1.3 * small


def test_no_pop_pays_for_all_of_a_burst(mq: psycopg.Connection):
    """Drained partitions leave the ready list in small steps: a few hundred at a time, each for a few buffers."""
    push_to(mq, [("q", f"p{number}") for number in range(PARTITIONS)])
    taken = 0
    while taken < PARTITIONS:
        leases = [row[0] for row in mq.execute(POP_ALL, {"queue": "q", "namespace": None}).fetchall()]
        mq.execute("SELECT skep.ack_all(%s)", [leases])
        taken += len(leases)
    used: list[int] = []
    while mq.execute(IN_READY_LIST).fetchall()[0][0] > 2:
        push(mq, "q", 1, partition="p0")
        used.append(buffers(mq, POP, queue="q", batch=1))
        mq.execute(ACK_LEASED)
        assert len(used) < 5_000, "drained partitions stay in the ready list"
    assert max(used) <= 2 * PARTITIONS
    assert sum(used) <= 20 * PARTITIONS


def test_a_namespace_of_many_queues_costs_as_much_as_one_queue(measured: Measure):
    one, many = measured(measure_namespace, 1), measured(measure_namespace, 1_000)
    for small, large in zip(one, many, strict=True):
        assert large <= 3 * small


def test_named_partitions_share_a_call(mq: psycopg.Connection):
    """One call of the server serves many pops by name, and costs no more than the pops one by one."""
    names = [f"p{number}" for number in range(64)]
    for group in ("alone", "together"):  # the group has read every partition before
        push_to(mq, [("q", name) for name in names])
        for name in names:
            ack(mq, pop(mq, "q", group, partition=name))
    ack(mq, pop(mq, "q", "alone", partitions=64))
    push_to(mq, [("q", name) for name in names])
    alone = sum(buffers(mq, POP_NAMED, group="alone", sizes=[1], names=[name]) for name in names)
    together = buffers(mq, POP_NAMED, group="together", sizes=[1] * 64, names=names)
    assert dict(mq.execute(LEASES).fetchall()) == {"alone": 64, "together": 64}
    assert together <= alone
