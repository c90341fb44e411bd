"""Writing in batches, as Spark does, with few rights: each batch once, and whole."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.engine.crowd import until
from tests.engine.test_privileges import as_role
from tests.engine.verbs import broken, call, drain, pass_time, push, push_to, refused

Piece = dict[tuple[str, str], list[str]]  # the payloads for each partition


def stage_partitions(connection: psycopg.Connection, batch: int, piece: Piece, sink: str = "s", **more: object) -> UUID:
    name = uuid4()
    arguments: dict[str, object] = {
        "queues": [queue for queue, _ in piece],
        "partitions": [partition for _, partition in piece],
        "counts": [len(payloads) for payloads in piece.values()],
        "payloads": "\x1e".join(payload for payloads in piece.values() for payload in payloads),
        **more,
    }
    call(connection, "_stage_messages", sink=sink, batch=batch, chunk=name, **arguments)
    return name


def stage(connection: psycopg.Connection, batch: int, *payloads: int, **more: Any) -> UUID:
    return stage_partitions(connection, batch, {("q", "p"): [str(payload) for payload in payloads]}, **more)


def publish(
    connection: psycopg.Connection,
    batch: int,
    *pieces: UUID,
    counts: Sequence[int | None],
    query: str = "me",
    sink: str = "s",
) -> int | None:
    arguments = {"sink": sink, "query": query, "batch": batch, "chunks": list(pieces), "counts": list(counts)}
    return call(connection, "_publish_batch", **arguments)[0][0]


def test_a_batch_is_published_once(mq: psycopg.Connection):
    """In the order of its pieces; what another attempt staged goes unpublished, and all of it is forgotten."""
    with as_role(mq, "skep_producer"):
        stage(mq, 0, 7, 8)
        second, first = stage(mq, 0, 3, 4), stage(mq, 0, 1, 2)
        assert publish(mq, 0, first, second, counts=[2, 2]) == 4
        again = stage(mq, 0, 1, 2, 3, 4)
        assert publish(mq, 0, again, counts=[4]) is None
        assert publish(mq, 1, stage(mq, 1, 5), counts=[1]) == 1
        assert publish(mq, 2, counts=[]) == 0
        with refused("SK007", "belongs to another query"):
            publish(mq, 3, counts=[], query="somebody else")
    assert [delivery.payload for delivery in drain(mq, "q")] == [1, 2, 3, 4, 5]
    assert mq.execute("SELECT count(*) FROM skep.sink_chunks").fetchall() == [(0,)]


def test_a_batch_that_lost_rows_is_refused(mq: psycopg.Connection):
    """A crash of the database empties what is staged: the batch must be written again."""
    piece = stage(mq, 0, 1, 2)
    with refused("SK002", "the database crashed while it was written"):
        publish(mq, 0, piece, counts=[3])
    with refused("SK002"):
        publish(mq, 0, piece, uuid4(), counts=[2, 1])
    with refused("SK002"):
        publish(mq, 0, uuid4(), counts=[None])
    assert mq.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]


def test_what_nobody_published_is_pruned(mq: psycopg.Connection):
    call(mq, "_open_sink", sink="s", query="me")
    stage(mq, 0, 1, 2)
    assert call(mq, "_prune_sinks")[0][0] == 0
    mq.execute("UPDATE skep.sinks SET used_at = 'epoch'")
    assert call(mq, "_prune_sinks")[0][0] == 2
    call(mq, "_drop_sink", sink="s")
    stage(mq, 0, 3)  # a task that was slower than its query
    assert call(mq, "_prune_sinks")[0][0] == 1


STORED = """
    SELECT l.queue, l.partition, m."offset", m.payload, m.headers, m.trace_id, m.producer
    FROM skep.messages m JOIN skep.partition_list l USING (partition_id) ORDER BY 1, 2, 3
"""


def test_pieces_are_appended_partition_by_partition(mq: psycopg.Connection):
    """Behind what is there and behind each other, each message with its own headers, in any order of partitions."""
    push_to(mq, [("q", "b", 0), ("q", "z", 0)])
    trace = uuid4()
    first = stage_partitions(mq, 0, {("q", "z"): ["1", "2"], ("r", "a"): ["3"], ("q", "b"): ["4", "5"]},
                        headers=[None, '{"h": 1}', None, None, None], trace_ids=[None, None, trace, None, None],
                        producers=[None, None, None, "me", None])  # fmt: skip
    second = stage_partitions(mq, 0, {("q", "b"): ["6"], ("q", "z"): ["7", "8"]})
    assert publish(mq, 0, first, second, counts=[5, 3]) == 8
    assert [tuple(row) for row in mq.execute(STORED).fetchall()] == [
        ("q", "b", 0, 0, None, None, None),
        ("q", "b", 1, 4, None, None, "me"),
        ("q", "b", 2, 5, None, None, None),
        ("q", "b", 3, 6, None, None, None),
        ("q", "z", 0, 0, None, None, None),
        ("q", "z", 1, 1, None, None, None),
        ("q", "z", 2, 2, {"h": 1}, None, None),
        ("q", "z", 3, 7, None, None, None),
        ("q", "z", 4, 8, None, None, None),
        ("r", "a", 0, 3, None, trace, None),
    ]
    assert push(mq, "q", 9, partition="b")[0].offset == 4
    assert broken(mq) == {}


def test_times_do_not_go_back(mq: psycopg.Connection):
    """A clock that is set back changes nothing: later messages have later times."""
    push(mq, "q", 0, partition="p")
    pass_time(mq, -3600)
    assert publish(mq, 0, stage(mq, 0, 1), counts=[1]) == 1
    push(mq, "q", 2, partition="p")
    times = [time for (time,) in mq.execute('SELECT created_at FROM skep.messages ORDER BY "offset"').fetchall()]
    assert times == sorted(times)
    assert broken(mq) == {}


def test_repeats_are_not_appended(mq: psycopg.Connection):
    """By transaction id: of what is stored, of another piece, within a piece."""
    push(mq, "q", 0, partition="p", transaction_ids=["a"])
    first = stage(mq, 0, 1, 2, 3, transaction_ids=["a", "b", None])
    second = stage(mq, 0, 4, 5, 6, 7, transaction_ids=["b", "c", "c", None])
    third = stage(mq, 0, 8)
    assert publish(mq, 0, first, second, third, counts=[3, 4, 1]) == 5
    assert [delivery.payload for delivery in drain(mq, "q")] == [0, 2, 3, 5, 7, 8]
    assert broken(mq) == {}


@pytest.mark.parametrize("payloads", [["1", "2\x1e3"], ["1\x1e2"], ['"a\x1eb"'], [""]])
def test_a_separator_inside_a_payload_is_refused(mq: psycopg.Connection, payloads: list[str]):
    """It would shift the payloads of others. JSON does not have it, but the text might not be JSON."""
    with refused("SK001", "contains the character U+001E"):
        stage_partitions(mq, 0, {("q", "p"): payloads})
    assert mq.execute("SELECT count(*) FROM skep.sink_chunks").fetchall() == [(0,)]


def test_what_is_not_json_is_an_error_of_its_task(mq: psycopg.Connection):
    with refused("22P02", "invalid input syntax for type json"):
        stage_partitions(mq, 0, {("q", "p"): ["1", "{"]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"queues": ["q", "q"], "partitions": ["p", "p"], "counts": [1, 1]},
        {"queues": ["q", "q"], "partitions": ["p", "r"], "counts": [2, 0]},
        {"queues": ["q", "q"], "partitions": ["p", "r"], "counts": [3, -1]},
        {"queues": ["q"], "partitions": ["p", "r"], "counts": [2]},
        {"counts": [None]},
        {"transaction_ids": ["a"]},
        {"headers": ["{}"]},
        {"trace_ids": [uuid4()]},
        {"producers": []},
    ],
)
def test_a_piece_whose_arrays_are_wrong_is_refused(mq: psycopg.Connection, wrong: dict[str, list[object]]):
    """Where a message goes is computed from the counts: a partition that is named twice would be written to twice."""
    with refused("SK001", "the arrays of a chunk do not match"):
        stage(mq, 0, 1, 2, **wrong)


def test_what_push_refuses_is_refused(mq: psycopg.Connection):
    mq.execute("SELECT skep.configure_queue('q', '{\"max_payload_bytes\": 1024}')")
    large = stage_partitions(mq, 0, {("q", "p"): ["1", f'"{"x" * 2000}"']})
    with refused("SK004", "item 1"):
        publish(mq, 0, large, counts=[2])
    with refused("SK004", "item 0"):  # it is the text that is sent to consumers
        publish(mq, 0, stage_partitions(mq, 0, {("q", "p"): ["1e131071"]}), counts=[1])
    with refused("SK001", "headers must be a JSON object, got a JSON array"):
        publish(mq, 0, stage(mq, 0, 1, headers=["[]"]), counts=[1])
    with refused("SK001", "the transaction id must have 1 to 255 characters, got 300"):
        publish(mq, 0, stage(mq, 0, 1, transaction_ids=["x" * 300]), counts=[1])
    assert mq.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]


def test_publishers_do_not_deadlock(mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]):
    """Each locks all its partitions before the first piece. Here their pieces come in opposite orders."""
    push_to(mq, [("q", "a", 0), ("q", "b", 0)])
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    holder, done = connect_module(), []
    holder.execute("BEGIN")
    push(holder, "q", 1, partition="a")
    with ThreadPoolExecutor() as pool:
        for number, lanes in enumerate(("ab", "ba"), 1):
            pieces = [stage_partitions(mq, 0, {("q", lane): [str(number)]}, sink=lanes) for lane in lanes]
            done.append(pool.submit(publish, connect_module(), 0, *pieces, counts=[1, 1], sink=lanes))
            until(lambda number=number: mq.execute(waiting).fetchall() == [(number,)], "the publishers to wait")
        holder.execute("ROLLBACK")
        assert [each.result() for each in done] == [2, 2]
    assert broken(mq) == {}
