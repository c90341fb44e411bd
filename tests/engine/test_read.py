"""Reading outside of groups and writing in batches, as Spark does, with few rights."""

from collections.abc import Callable
from uuid import UUID, uuid4

import psycopg

from tests.engine.test_privileges import as_role
from tests.engine.verbs import broken, call, drain, push, push_to, refused


def snapshot(connection: psycopg.Connection) -> str:
    ((view,),) = connection.execute("SELECT view::text FROM skep.read_view(ARRAY['q'])").fetchall()
    return view


def test_the_journal_and_the_lanes_say_the_same(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]
):
    """Also about transactions that were open at one end of the window, or at both, and about those rolled back."""
    push_to(mq, [("q", lane, 0) for lane in "abcd"])
    writers = {lane: connect_module() for lane in "bcd"}
    for lane, writer in writers.items():
        writer.execute("BEGIN")
        push(writer, "q", 1, 2, partition=lane)
    since = snapshot(mq)
    writers["b"].execute("COMMIT")
    writers["c"].execute("ROLLBACK")
    push(mq, "q", 3, partition="a")
    until = snapshot(mq)
    push(mq, "q", 4, partition="a")
    writers["d"].execute("COMMIT")
    ask = "SELECT partition_id, first_offset, end_offset FROM skep.{}"
    journal = "journal_window(ARRAY[1], %(since)s::pg_snapshot, %(until)s::pg_snapshot, NULL)"
    lanes = "lane_window(ARRAY[1], %(since)s::pg_snapshot, '{}', %(until)s::pg_snapshot, NULL, NULL)"
    view = {"since": since, "until": until}
    by_journal = mq.execute(ask.replace("{}", journal, 1).encode(), view).fetchall()
    assert by_journal == [(1, 1, 2), (2, 1, 3)]
    assert by_journal == mq.execute(ask.replace("{}", lanes, 1).encode(), view).fetchall()


def stage(connection: psycopg.Connection, batch: int, *payloads: int, sink: str = "s", **more: object) -> UUID:
    piece = uuid4()
    values = "\x1e".join(map(str, payloads))
    lane: dict[str, object] = {"queues": ["q"], "partitions": ["p"], "counts": [len(payloads)]}
    call(connection, "stage_piece", sink=sink, batch=batch, piece=piece, payloads=values, **{**lane, **more})
    return piece


def publish(
    connection: psycopg.Connection, batch: int, *pieces: UUID, counts: list[int], query: str = "me"
) -> int | None:
    arguments = {"sink": "s", "query": query, "batch": batch, "pieces": list(pieces), "counts": counts}
    return call(connection, "publish_batch", **arguments)[0].publish_batch


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
    assert mq.execute("SELECT count(*) FROM skep.sink_pieces").fetchall() == [(0,)]


def test_a_batch_that_lost_rows_is_refused(mq: psycopg.Connection):
    """A crash of the database empties what is staged: the batch must be written again."""
    piece = stage(mq, 0, 1, 2)
    with refused("SK002", "the database crashed while it was written"):
        publish(mq, 0, piece, counts=[3])
    with refused("SK002"):
        publish(mq, 0, piece, uuid4(), counts=[2, 1])
    assert mq.execute("SELECT count(*) FROM skep.messages").fetchall() == [(0,)]


def test_what_nobody_published_is_pruned(mq: psycopg.Connection):
    call(mq, "open_sink", sink="s", query="me")
    stage(mq, 0, 1, 2)
    assert call(mq, "prune_sinks")[0].prune_sinks == 0
    mq.execute("UPDATE skep.sinks SET used_at = 'epoch'")
    assert call(mq, "prune_sinks")[0].prune_sinks == 2


def test_a_group_is_put_where_a_reader_is(mq: psycopg.Connection):
    """Forward and back, leases dropped; nothing of it breaks what consumers rely on."""
    push(mq, "q", *range(10))
    with as_role(mq, "skep_consumer"):
        call(mq, "subscribe", group_name="g", queue="q", mode="all")
        (held,) = call(mq, "pop", queue="q", group_name="g")
        for at in (7, 3):
            call(mq, "follow", group_name="g", lanes=[1], start_offsets=[0], offsets=[at])
            assert call(mq, "lag", group_name="g")[0].lag == 10 - at
        with refused("SK003"):
            call(mq, "ack", lease=held.lease)
    assert broken(mq) == {}
    assert [delivery.payload for delivery in drain(mq, "q", "g")] == list(range(3, 10))
