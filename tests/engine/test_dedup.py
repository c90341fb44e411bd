"""Deduplication: a transaction id is stored once per partition, within the window."""

from collections.abc import Callable
from functools import partial
from threading import Barrier

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.threads import PATIENCE, at_once
from tests.engine.verbs import broken, call, configure, drain, lag, pass_time, pop, push, push_to, refused

Connect = Callable[..., psycopg.Connection]


def push_one(connection: psycopg.Connection, payload: object = 1, **options: object) -> tuple:
    """Push one message with transaction id "t"; return its status, offset and id."""
    arguments = {"queue": "q", "payload": Jsonb(payload), "transaction_id": "t", **options}
    (result,) = call(connection, "push", **arguments)
    return result.status, result.offset, result.id


def test_a_duplicate_push_returns_the_stored_message(mq: psycopg.Connection):
    """Status, id, offset and time are those of the first; nothing is stored (scenario L5)."""
    first = call(mq, "push", queue="q", payload=Jsonb("a"), transaction_id="t")[0]
    again = call(mq, "push", queue="q", payload=Jsonb("b"), transaction_id="t")[0]
    assert (first.status, again.status) == ("queued", "duplicate")
    assert first[1:] == again[1:]
    assert [delivery.payload for delivery in drain(mq, "q")] == ["a"]
    assert push_one(mq)[0] == "duplicate"  # consumed, but still stored
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})


def test_other_partitions_and_queues_do_not_collide(mq: psycopg.Connection):
    """The same transaction id in another partition or queue is another message (scenario L5)."""
    pairs = [("q", "a"), ("q", "b"), ("r", "a"), ("q", "A")]
    results = push_to(mq, [(*pair, None) for pair in pairs], transaction_ids=["t"] * 4)
    assert [(result.status, result.offset) for result in results] == [("queued", 0)] * 4
    assert len({result.partition_id for result in results}) == 4


def test_messages_without_a_transaction_id_are_never_duplicates(mq: psycopg.Connection):
    """Without an id there is no deduplication, and no entry in its index (scenario L5)."""
    results = push(mq, "q", 1, 1, 1, transaction_ids=[None, "t", None])
    assert [result.status for result in results] == ["queued"] * 3
    assert [result.status for result in push(mq, "q", 1, 1)] == ["queued"] * 2
    only_for = (
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index"
        " WHERE indexrelid = 'skep.messages_transaction_id'::regclass"
    )
    assert mq.execute(only_for).fetchall() == [("(transaction_id IS NOT NULL)",)]


def test_duplicates_within_one_call(mq: psycopg.Connection):
    """The first message of each id is stored, offsets stay dense, and the results keep the order of the items.

    Scenario l5.
    """
    push(mq, "q", "old", transaction_ids=["old"])
    ids = ["a", "b", "a", "old", None, "b", "c", "a"]
    results = push(mq, "q", *range(8), transaction_ids=ids)
    queued, repeat = "queued", "duplicate"
    assert [result.status for result in results] == [queued, queued, repeat, repeat, queued, repeat, queued, repeat]
    assert [result.offset for result in results] == [1, 2, 1, 0, 3, 2, 4, 1]
    assert [delivery.payload for delivery in drain(mq, "q")] == ["old", 0, 1, 4, 6]
    assert broken(mq) == {}


def test_a_push_of_duplicates_only_writes_nothing(mq: psycopg.Connection):
    """It takes no offset, writes no journal row and sends no notification (scenario L5)."""
    push(mq, "q", 1, 2, transaction_ids=["a", "b"])
    drain(mq, "q")
    counts = "SELECT (SELECT count(*) FROM skep.journal), (SELECT last_offset FROM skep.partition_lookup)"
    before = mq.execute(counts).fetchall()
    assert {result.status for result in push(mq, "q", 1, 2, transaction_ids=["b", "a"])} == {"duplicate"}
    assert mq.execute(counts).fetchall() == before
    assert pop(mq, "q") == []


def all_together(connection: psycopg.Connection, start: Barrier, partitions: list[str]) -> list[tuple]:
    results = []
    for partition in partitions:
        start.wait(PATIENCE)
        results.append(push_one(connection, partition=partition))
    return results


@pytest.mark.parametrize("exists", [True, False], ids=["partition_exists", "partition_is_created"])
def test_eight_duplicate_pushes_at_once(connect: Connect, *, exists: bool):
    """One of eight is queued, the other seven return `duplicate` with its id (scenario L5)."""
    partitions = [f"{n}" for n in range(20)]
    if exists:
        push_to(connect(), [("q", partition, "first") for partition in partitions])
    start = Barrier(8)
    results = at_once(*[partial(all_together, connect(), start, partitions) for _ in range(8)])
    for partition in range(20):
        statuses = sorted(result[partition][0] for result in results)
        assert statuses == ["duplicate"] * 7 + ["queued"]
        assert len({result[partition][1:] for result in results}) == 1
    assert broken(connect()) == {}


def test_a_duplicate_waits_for_the_open_push_and_replaces_it_if_it_rolls_back(connect: Connect):
    """The first is not stored until it commits; if it rolls back, the second is stored (scenario L5)."""
    first, second = connect(), connect(options="-c lock_timeout=50ms")
    push(first, "q", 0)
    first.execute("BEGIN")
    assert push_one(first)[:2] == ("queued", 1)
    with refused("55P03"):
        push_one(second)
    first.execute("ROLLBACK")
    assert push_one(second)[:2] == ("queued", 1)
    assert push_one(first)[:2] == ("duplicate", 1)


def test_the_dedup_window_of_the_queue(mq: psycopg.Connection):
    """After dedup_window seconds the id may be pushed again, and later duplicates return the new message.

    Scenario l5.
    """
    configure(mq, "q", dedup_window=600)
    assert push_one(mq)[:2] == ("queued", 0)
    pass_time(mq, 599)
    assert push_one(mq)[:2] == ("duplicate", 0)
    pass_time(mq, 2)
    assert push_one(mq)[:2] == ("queued", 1)
    assert push_one(mq)[:2] == ("duplicate", 1)
    configure(mq, "q", dedup_window=None)  # for as long as the message is kept
    pass_time(mq, 10**6)
    assert push_one(mq)[:2] == ("duplicate", 1)


def test_a_deleted_message_is_still_a_duplicate(mq: psycopg.Connection):
    """The tombstone keeps the transaction id, so a late duplicate does not restore the message (scenario L5)."""
    status, offset, message = push_one(mq, "gone")
    assert call(mq, "delete_message", id=message) == [(True,)]
    assert push_one(mq, "gone") == ("duplicate", offset, message)
    push(mq, "q", "next")
    assert [delivery.payload for delivery in drain(mq, "q")] == ["next"]
    assert (status, lag(mq), broken(mq)) == ("queued", {"Default": 0}, {})


def test_a_deleted_partition_forgets_its_transaction_ids(mq: psycopg.Connection):
    push_one(mq)
    assert call(mq, "delete_partition", queue="q", partition="Default") == [(True,)]
    assert push_one(mq)[:2] == ("queued", 0)
