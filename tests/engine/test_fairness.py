"""Fairness: no partition waits for a slow, a large, a delayed or a failing one."""

from typing import Any

import psycopg
import pytest

from tests.engine.acks import one_by_one
from tests.engine.verbs import Row, ack, broken, configure, drain, pass_time, pop, push, push_to

Q = "orders"
HOUR = 3600
MANY = 200


def partitions(deliveries: list[Row]) -> list[str]:
    return [message.partition for message in deliveries]


def push_many_partitions(connection: psycopg.Connection, queue: str = Q) -> None:
    push_to(connection, [(queue, f"partition {number:03}", number) for number in range(MANY)])


def test_a_slow_partition_delays_no_other(mq: psycopg.Connection):
    """While one partition is leased, the others continue (scenario C9)."""
    push(mq, Q, *range(5), partition="slow")
    leased = pop(mq, Q, batch=1)
    for number in range(5):
        push(mq, Q, number, partition="quick")
        push(mq, Q, number, partition=f"new {number}")
        assert {*partitions(drain(mq, Q))} == {"quick", f"new {number}"}
    ack(mq, leased)
    assert partitions(pop(mq, Q)) == ["slow"] * 4


@pytest.mark.parametrize("discovers", [True, False], ids=["new partition", "known partition"])
def test_a_pop_in_an_open_transaction_loses_nothing(
    mq: psycopg.Connection, module_database_url: str, *, discovers: bool
):
    """Other consumers find new work meanwhile, never hang, and get the messages of the transaction when it ends.

    Scenario c9.
    """
    push(mq, Q, 0, partition="slow")
    push(mq, Q, 0, partition="quick")
    drain(mq, Q)
    push(mq, Q, 1, 2, partition="known")
    ack(mq, pop(mq, Q, batch=1))
    push(mq, Q, 1, partition="slow")
    mq.execute("SET statement_timeout = '2s'")
    with psycopg.connect(module_database_url) as slow:
        assert partitions(pop(slow, Q, partition="slow")) == ["slow"]
        slow.execute("SELECT count(*) FROM skep.pop(%s, 'g', partitions => 1)", [Q])
        push(mq, Q, 1, partition="new" if discovers else "quick")
        assert partitions(drain(mq, Q)) == ["new" if discovers else "quick"]
        slow.rollback()
    assert {*partitions(drain(mq, Q))} == {"known", "slow"}


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
@pytest.mark.parametrize("group", ["g", "late"])
def test_partitions_that_are_not_ready_never_hide_a_ready_one(mq: psycopg.Connection, option: str, group: str):
    """Two hundred waiting partitions are first in the ready list.

    The one that is ready is served at once (scenario C10).
    """
    configure(mq, Q, **{option: HOUR})
    push_many_partitions(mq)
    push(mq, Q, 0, partition="ready")
    assert pop(mq, Q) == []
    pass_time(mq, HOUR)
    assert len(drain(mq, Q, partitions=50)) == MANY + 1
    if group != "g":
        pop(mq, Q, group, subscription_mode="timestamp", subscription_from="now")
    push(mq, Q, 1, partition="ready")
    pass_time(mq, HOUR)
    push_many_partitions(mq)

    assert partitions(drain(mq, Q, group, partitions=10)) == ["ready"]
    pass_time(mq, HOUR)
    assert len(drain(mq, Q, group, partitions=50)) == MANY
    assert broken(mq) == {}


def test_failing_partitions_never_hide_a_ready_one(mq: psycopg.Connection):
    """Two hundred partitions wait for their retry (scenario C10)."""
    configure(mq, Q, retry_delay=HOUR)
    push_many_partitions(mq)
    while batch := pop(mq, Q):
        one_by_one(mq, batch, "f")
    push(mq, Q, 0, partition="ready")
    assert partitions(drain(mq, Q)) == ["ready"]
    pass_time(mq, 2 * HOUR)
    assert len(drain(mq, Q, partitions=50)) == MANY


@pytest.mark.parametrize("changed", [{"window_buffer": 0}, {"concurrency": 1}, {"delayed_processing": 0}])
def test_a_waiting_retry_hides_nothing_after_a_change_of_options(mq: psycopg.Connection, changed: dict[str, Any]):
    """Clients configure their queues whenever they start (scenario C10)."""
    configure(mq, Q, retry_delay=HOUR)
    push(mq, Q, 0, 1, partition="a")
    mq.execute("SELECT skep.release(%s)", [pop(mq, Q)[0].lease])
    one_by_one(mq, pop(mq, Q, batch=1), "f")
    configure(mq, Q, **changed)
    for number in range(3):
        push(mq, Q, number, partition="b")
        assert partitions(drain(mq, Q)) == ["b"]


def test_a_waiting_queue_of_high_priority_does_not_hide_a_lower_one(mq: psycopg.Connection):
    """Priority orders messages that are ready (scenario C10)."""
    configure(mq, "n.high", priority=9, delayed_processing=HOUR)
    push_many_partitions(mq, "n.high")
    push(mq, "n.low", 0)
    assert [message.queue for message in pop(mq, None, namespace="n")] == ["n.low"]
    pass_time(mq, HOUR)
    assert [message.queue for message in pop(mq, None, namespace="n")] == ["n.high"]


def test_a_delay_holds_back_the_tail_of_a_partition(mq: psycopg.Connection):
    """Messages that are old enough are served, later ones wait (scenario C10)."""
    configure(mq, Q, delayed_processing=HOUR)
    push(mq, Q, *range(3))
    pass_time(mq, HOUR)
    push(mq, Q, *range(3, 5))
    assert [message.offset for message in drain(mq, Q)] == [0, 1, 2]
    pass_time(mq, HOUR / 2)
    assert pop(mq, Q, partition="Default") == []
    pass_time(mq, HOUR / 2)
    assert [message.offset for message in drain(mq, Q)] == [3, 4]


def test_a_window_opens_when_the_partition_is_quiet(mq: psycopg.Connection):
    """Every push restarts the quiet period (scenario C10)."""
    configure(mq, Q, window_buffer=HOUR)
    for number in range(4):
        push(mq, Q, number)
        assert pop(mq, Q) == []
        assert pop(mq, Q, partition="Default") == []
        pass_time(mq, HOUR * 0.6)
    pass_time(mq, HOUR * 0.4)
    assert [message.offset for message in drain(mq, Q)] == [0, 1, 2, 3]


def test_a_window_does_not_hold_back_returned_messages(mq: psycopg.Connection):
    """The quiet period applies to the first delivery only (scenario C10)."""
    configure(mq, Q, window_buffer=HOUR, retry_delay=0)
    push(mq, Q, 0)
    pass_time(mq, HOUR)
    one_by_one(mq, pop(mq, Q), "f")
    push(mq, Q, 1)
    assert [(message.offset, message.attempt) for message in drain(mq, Q)] == [(0, 2)]


def test_removing_the_delay_takes_effect_at_once(mq: psycopg.Connection):
    configure(mq, Q, delayed_processing=HOUR)
    push(mq, Q, 0)
    assert pop(mq, Q) == []
    configure(mq, Q, delayed_processing=0)
    assert len(pop(mq, Q)) == 1


@pytest.mark.parametrize("leased", [True, False])
def test_small_partitions_beside_a_large_one(mq: psycopg.Connection, *, leased: bool):
    """Two hundred partitions with one message each are served within 0.25 s, beside one with twenty thousand.

    Scenario c13.
    """
    push(mq, Q, *range(20_000), partition="large")
    for _ in range(3):
        ack(mq, pop(mq, Q, batch=10))
    if leased:
        pop(mq, Q, batch=10)
    push_many_partitions(mq)
    pass_time(mq, 0.25)  # consumers that have work may put off discovery for this long

    served: list[str] = []
    while len({*served} - {"large"}) < MANY:
        batch = pop(mq, Q, batch=10)
        ack(mq, batch)
        served.append(batch[0].partition)
    assert served.count("large") <= 1
    assert len(served) <= MANY + 1


def test_the_large_partition_is_not_starved(mq: psycopg.Connection):
    """Partitions that are refilled again and again take turns with it (scenario C13)."""
    push(mq, Q, *range(100), partition="large")
    served: list[str] = []
    for number in range(30):
        for partition in "abc":
            push(mq, Q, number, partition=partition)
        batch = pop(mq, Q, batch=1)
        ack(mq, batch)
        served += partitions(batch)
    assert [served.count(partition) for partition in ("large", "a", "b", "c")] == pytest.approx([7.5] * 4, abs=1)


def test_round_robin(mq: psycopg.Connection):
    """The partition that was served longest ago is served first (scenario C13)."""
    for partition in "abc":
        push(mq, Q, *range(4), partition=partition)
    served = []
    while batch := pop(mq, Q, batch=1):
        ack(mq, batch)
        served += partitions(batch)
    assert "".join(served) == "abc" * 4


@pytest.mark.parametrize("option", ["delayed_processing", "window_buffer"])
def test_round_robin_after_a_delay(mq: psycopg.Connection, option: str):
    """Delayed partitions take turns as others do: forty partitions, forty pops, each served once (scenario C13)."""
    configure(mq, Q, **{option: HOUR})
    push_to(mq, [(Q, f"partition {number % 40}", number) for number in range(400)])
    assert pop(mq, Q) == []
    pass_time(mq, HOUR)
    served: list[str] = []
    for _ in range(40):
        batch = pop(mq, Q, batch=1)
        ack(mq, batch)
        served += partitions(batch)
    assert len({*served}) == 40


def test_a_partition_popped_by_name_goes_to_the_end_of_the_ready_list(mq: psycopg.Connection):
    """It was served, no matter how it was chosen (scenario C13)."""
    for partition in "abc":
        push(mq, Q, *range(3), partition=partition)
    served = []
    for name in (None, "b", None, None, None):
        batch = pop(mq, Q, batch=1, partition=name)
        ack(mq, batch)
        served += partitions(batch)
    assert "".join(served) == "abcab"
