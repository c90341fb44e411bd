"""Deleting groups, with and without their subscription, queues and partitions; and the lag that is left."""

import psycopg
import pytest
from psycopg import sql

from tests.engine.verbs import ack, broken, call, configure, drain, lag, pass_time, pop, push, push_to, refused, take

OF_A_GROUP = ["subscriptions", "group_queues", "starts", "runs", "discoveries"]
LEFT = ["queues", "partitions", "partition_floors", "messages", "journal", *OF_A_GROUP]


def left(connection: psycopg.Connection) -> dict[str, int]:
    """Return the tables that have rows, and how many."""
    count = sql.SQL("SELECT count(*) FROM skep.{}")
    counts = {name: connection.execute(count.format(sql.Identifier(name))).fetchall()[0][0] for name in LEFT}
    return {name: rows for name, rows in counts.items() if rows}


def delete_group(connection: psycopg.Connection, **arguments: object) -> int:
    return call(connection, "delete_group", group_name="g", **arguments)[0][0]


def test_a_deleted_group_starts_as_a_new_one(mq: psycopg.Connection):
    """Without its subscription it starts by the mode that it names now."""
    push(mq, "q", "old", "older", partition="a")
    assert take(mq, "q", batch=1) == ["old"]
    leased = pop(mq, "q")
    pass_time(mq, 3600)
    assert delete_group(mq) == 1
    with refused("SK003"):
        ack(mq, leased)
    assert left(mq).keys() & set(OF_A_GROUP) == set()
    push(mq, "q", "new", partition="b")
    assert take(mq, "q", subscription_mode="new") == ["new"]
    delete_group(mq)
    assert sorted(d.payload for d in drain(mq, "q")) == ["new", "old", "older"]
    assert broken(mq) == {}


def test_a_group_that_keeps_its_subscription_starts_where_it_first_did(mq: psycopg.Connection):
    """A `new` group deleted with its subscription kept gets everything since its start, and no history."""
    push(mq, "q", "history")
    pass_time(mq, 3600)
    assert take(mq, "q", subscription_mode="new") == []
    push(mq, "q", "a", "b")
    assert take(mq, "q") == ["a", "b"]
    pass_time(mq, 3600)
    assert delete_group(mq, keep_subscription=True) == 1
    assert take(mq, "q", subscription_mode="all") == ["a", "b"]


def test_a_group_deleted_from_one_queue_keeps_the_others(mq: psycopg.Connection):
    push_to(mq, [("q", "p", 1), ("r", "p", 2)])
    drain(mq, "q")
    drain(mq, "r")
    drain(mq, "q", "other")
    assert delete_group(mq, queue="q") == 1
    assert (lag(mq, "g", "r"), lag(mq, "other")) == ({"p": 0}, {"p": 0})
    assert take(mq, "q") == [1]
    assert take(mq, "r") == []


def test_deleting_an_unknown_group(mq: psycopg.Connection):
    assert delete_group(mq) == 0
    assert delete_group(mq, queue="q") == 0
    assert call(mq, "delete_queue", queue="q") == [(False,)]
    assert call(mq, "delete_partition", queue="q", partition="p") == [(False,)]
    assert call(mq, "delete_message", id="00000000-0000-8001-8000-000000000000") == [(False,)]


def test_a_deleted_queue_is_forgotten_with_its_subscriptions(mq: psycopg.Connection):
    """A queue of the same name starts from nothing for every group; dead letters are copies and stay."""
    configure(mq, "q", retry_limit=0, priority=9)
    push(mq, "q", "a", "b", partition="p")
    call(mq, "dead_letter", lease=pop(mq, "q", "dead", batch=1)[0].lease, error="poison")
    take(mq, "q", subscription_mode="new", partition="p")
    leased = pop(mq, "q", "holder")
    call(mq, "subscribe", group_name="g", queue="q")
    assert call(mq, "delete_queue", queue="q") == [(True,)]
    assert left(mq) == {}
    assert mq.execute("SELECT payload FROM skep.dead_letters").fetchall() == [("a",)]
    with refused("SK003"):
        ack(mq, leased)
    push(mq, "q", "c", partition="p")
    pass_time(mq, 60)
    assert (take(mq, "q"), take(mq, "q", "holder")) == (["c"], ["c"])
    assert mq.execute("SELECT priority FROM skep.queues").fetchall() == [(0,)]


def test_a_subscription_without_a_queue_is_forgotten_too(mq: psycopg.Connection):
    call(mq, "subscribe", group_name="g", queue="q", mode="new")
    assert call(mq, "delete_queue", queue="q") == [(False,)]
    assert left(mq) == {}


def test_a_wildcard_subscription_outlives_its_queues(mq: psycopg.Connection):
    push(mq, "ns.q", "history")
    pass_time(mq, 3600)
    assert take(mq, None, namespace="ns", subscription_mode="new") == []
    call(mq, "delete_queue", queue="ns.q")
    pass_time(mq, 600)
    push(mq, "ns.q", "anew")
    pass_time(mq, 600)
    assert take(mq, None, namespace="ns") == ["anew"]


def test_a_deleted_partition_starts_again_at_zero(mq: psycopg.Connection):
    """Its offsets, leases, cursors and subscriptions are deleted; the rest of the queue stays."""
    push_to(mq, [("q", "a", 1), ("q", "b", 2)])
    leased = pop(mq, "q", partition="a")
    call(mq, "subscribe", group_name="late", queue="q", partition="a", mode="offset", start_from="5")
    assert call(mq, "delete_partition", queue="q", partition="a") == [(True,)]
    with refused("SK003"):
        ack(mq, leased)
    assert [row.offset for row in push(mq, "q", 3, partition="a")] == [0]
    assert sorted(d.payload for d in drain(mq, "q")) == [2, 3]
    assert sorted(d.payload for d in drain(mq, "q", "late")) == [2, 3]
    assert broken(mq) == {}


def test_lag_of_known_and_unknown_partitions(mq: psycopg.Connection):
    """Lag is the last offset minus the cursor; a missing cursor is the subscription's start (scenario 4)."""
    push(mq, "q", *range(5), partition="old")
    pass_time(mq, 3600)
    pop(mq, "q", subscription_mode="new")
    push(mq, "q", *range(3), partition="fresh")
    push(mq, "q", 5, partition="old")
    assert lag(mq) == {"old": 1, "fresh": 3}
    leased = pop(mq, "q", batch=2, partition="fresh")
    rows = {row.partition: row for row in call(mq, "lag", group_name="g", queue="q", partition="fresh")}
    assert (rows["fresh"].lag, rows["fresh"].leased, rows["fresh"].cursor, rows["fresh"].last_offset) == (3, 1, 0, 2)
    call(mq, "ack", lease=leased[0].lease, id=leased[0].id)
    ack(mq, leased)
    assert lag(mq) == {"old": 1, "fresh": 1}
    assert drain(mq, "q") != []
    assert lag(mq) == {"old": 0, "fresh": 0}


@pytest.mark.parametrize("mode", ["new", "all"])
def test_lag_of_a_group_that_has_not_popped_yet(mq: psycopg.Connection, mode: str):
    """Its subscription is enough: a missing cursor does not mean that the backlog is empty."""
    push(mq, "q", *range(3))
    pass_time(mq, 3600)
    call(mq, "subscribe", group_name="g", queue="q", mode=mode)
    push(mq, "q", 3)
    assert lag(mq) == {"Default": 1 if mode == "new" else 4}


def test_lag_of_one_queue_or_of_all(mq: psycopg.Connection):
    push_to(mq, [("a", "p", 1), ("b", "p", 1), ("b", "p", 2)])
    pop(mq, "a")
    pop(mq, "b", batch=1)
    found = {(row.queue, row.partition): row.lag for row in call(mq, "lag", group_name="g")}
    assert found == {("a", "p"): 1, ("b", "p"): 2}
    assert lag(mq, "g", "b") == {"p": 2}
    assert lag(mq, "nobody") == {}


def test_lag_counts_tombstones_until_they_are_passed(mq: psycopg.Connection):
    """A message deleted by hand keeps its offset, so lag stays exact arithmetic."""
    results = push(mq, "q", "a", "gone", "c")
    address = call(mq, "message_id", partition_id=results[1].partition_id, offset=1)[0][0]
    pop(mq, "other")
    call(mq, "subscribe", group_name="g", queue="q")
    pop(mq, "q", "g", batch=1, lease_time=0.001)
    assert call(mq, "delete_message", id=address) == [(True,)]
    assert lag(mq) == {"Default": 3}
    assert [d.payload for d in drain(mq, "q")] == ["a", "c"]
    assert lag(mq) == {"Default": 0}
