"""Deduplication: a transaction id is stored once per lane, within the window."""

from collections.abc import Callable
from functools import partial
from threading import Barrier

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.crowd import PATIENCE, at_once
from tests.engine.verbs import broken, call, configure, drain, lag, pass_time, pop, push, push_to, refused

Connect = Callable[..., psycopg.Connection]


def push_one(connection: psycopg.Connection, payload: object = 1, **options: object) -> tuple:
    """Return status, offset and id of a single push with transaction id "t"."""
    arguments = {"queue": "q", "payload": Jsonb(payload), "transaction_id": "t", **options}
    (answer,) = call(connection, "push", **arguments)
    return answer.status, answer.offset, answer.id


def test_a_repeat_answers_with_the_stored_message(mq: psycopg.Connection):
    """L5: status, id, offset and time are those of the first; nothing is stored."""
    first = call(mq, "push", queue="q", payload=Jsonb("a"), transaction_id="t")[0]
    again = call(mq, "push", queue="q", payload=Jsonb("b"), transaction_id="t")[0]
    assert (first.status, again.status) == ("queued", "duplicate")
    assert first[1:] == again[1:]
    assert [delivery.payload for delivery in drain(mq, "q")] == ["a"]
    assert push_one(mq)[0] == "duplicate"  # consumed, but still stored
    assert (lag(mq), broken(mq)) == ({"Default": 0}, {})


def test_other_lanes_and_queues_do_not_collide(mq: psycopg.Connection):
    """L5: the same transaction id in another partition or queue is another message."""
    pairs = [("q", "a"), ("q", "b"), ("r", "a"), ("q", "A")]
    answers = push_to(mq, [(*pair, None) for pair in pairs], transaction_ids=["t"] * 4)
    assert [(answer.status, answer.offset) for answer in answers] == [("queued", 0)] * 4
    assert len({answer.partition_id for answer in answers}) == 4


def test_messages_without_a_transaction_id_never_repeat(mq: psycopg.Connection):
    """L5: no id, no deduplication, and no entry in its index."""
    answers = push(mq, "q", 1, 1, 1, transaction_ids=[None, "t", None])
    assert [answer.status for answer in answers] == ["queued"] * 3
    assert [answer.status for answer in push(mq, "q", 1, 1)] == ["queued"] * 2
    only_for = (
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index"
        " WHERE indexrelid = 'skep.messages_transaction_id'::regclass"
    )
    assert mq.execute(only_for).fetchall() == [("(transaction_id IS NOT NULL)",)]


def test_repeats_within_one_call(mq: psycopg.Connection):
    """L5: the first of each id is stored, offsets stay dense, and every answer has its place."""
    push(mq, "q", "old", transaction_ids=["old"])
    ids = ["a", "b", "a", "old", None, "b", "c", "a"]
    answers = push(mq, "q", *range(8), transaction_ids=ids)
    queued, repeat = "queued", "duplicate"
    assert [answer.status for answer in answers] == [queued, queued, repeat, repeat, queued, repeat, queued, repeat]
    assert [answer.offset for answer in answers] == [1, 2, 1, 0, 3, 2, 4, 1]
    assert [delivery.payload for delivery in drain(mq, "q")] == ["old", 0, 1, 4, 6]
    assert broken(mq) == {}


def test_a_push_of_nothing_but_repeats_writes_nothing(mq: psycopg.Connection):
    """L5: no offset, no journal row, and nobody is woken."""
    push(mq, "q", 1, 2, transaction_ids=["a", "b"])
    drain(mq, "q")
    counts = "SELECT (SELECT count(*) FROM skep.journal), (SELECT last_offset FROM skep.partition_lookup)"
    before = mq.execute(counts).fetchall()
    assert {answer.status for answer in push(mq, "q", 1, 2, transaction_ids=["b", "a"])} == {"duplicate"}
    assert mq.execute(counts).fetchall() == before
    assert pop(mq, "q") == []


def all_together(connection: psycopg.Connection, start: Barrier, lanes: list[str]) -> list[tuple]:
    answers = []
    for lane in lanes:
        start.wait(PATIENCE)
        answers.append(push_one(connection, partition=lane))
    return answers


@pytest.mark.parametrize("exists", [True, False], ids=["lane_exists", "lane_is_created"])
def test_eight_at_once(connect: Connect, *, exists: bool):
    """L5: one of eight is queued, the other seven answer `duplicate` with its id."""
    lanes = [f"{n}" for n in range(20)]
    if exists:
        push_to(connect(), [("q", lane, "first") for lane in lanes])
    start = Barrier(8)
    answers = at_once(*[partial(all_together, connect(), start, lanes) for _ in range(8)])
    for lane in range(20):
        statuses = sorted(answer[lane][0] for answer in answers)
        assert statuses == ["duplicate"] * 7 + ["queued"]
        assert len({answer[lane][1:] for answer in answers}) == 1
    assert broken(connect()) == {}


def test_a_repeat_waits_for_the_open_push_and_takes_its_place_if_it_fails(connect: Connect):
    """L5: the first is not stored until it commits; if it rolls back, the repeat is the message."""
    first, second = connect(), connect(options="-c lock_timeout=50ms")
    push(first, "q", 0)
    first.execute("BEGIN")
    assert push_one(first)[:2] == ("queued", 1)
    with refused("55P03"):
        push_one(second)
    first.execute("ROLLBACK")
    assert push_one(second)[:2] == ("queued", 1)
    assert push_one(first)[:2] == ("duplicate", 1)


def test_the_window_of_the_queue(mq: psycopg.Connection):
    """L5: after dedup_window seconds the id may come again; the latest one then answers."""
    configure(mq, "q", dedup_window=600)
    assert push_one(mq)[:2] == ("queued", 0)
    pass_time(mq, 599)
    assert push_one(mq)[:2] == ("duplicate", 0)
    pass_time(mq, 2)
    assert push_one(mq)[:2] == ("queued", 1)
    assert push_one(mq)[:2] == ("duplicate", 1)
    configure(mq, "q", dedup_window=None)  # as long as the message is kept
    pass_time(mq, 10**6)
    assert push_one(mq)[:2] == ("duplicate", 1)


def test_a_deleted_message_is_still_a_duplicate(mq: psycopg.Connection):
    """L5: the tombstone keeps the transaction id, so a late repeat does not bring the message back."""
    status, offset, message = push_one(mq, "gone")
    assert call(mq, "delete_message", id=message) == [(True,)]
    assert push_one(mq, "gone") == ("duplicate", offset, message)
    push(mq, "q", "next")
    assert [delivery.payload for delivery in drain(mq, "q")] == ["next"]
    assert (status, lag(mq), broken(mq)) == ("queued", {"Default": 0}, {})


def test_a_deleted_lane_forgets_its_ids(mq: psycopg.Connection):
    push_one(mq)
    assert call(mq, "delete_partition", queue="q", partition="Default") == [(True,)]
    assert push_one(mq)[:2] == ("queued", 0)
