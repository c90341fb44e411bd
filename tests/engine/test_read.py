"""Reading outside of groups, as Spark does, with few rights."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from tests.engine.test_privileges import as_role
from tests.engine.verbs import broken, call, configure, drain, push, push_to, refused


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


@pytest.mark.parametrize(("way", "queue"), [("retain", {}), ("clear_queue", {"queue": "q"})])
def test_what_is_deleted_unread_is_noticed(mq: psycopg.Connection, way: str, queue: dict[str, str]):
    """By the journal and, where it does not reach back, by the lanes. A reader that has seen it all misses nothing."""
    configure(mq, "q", retention_seconds=0.000001)
    push_to(mq, [("q", "a", 0), ("q", "b", 0)])
    since = snapshot(mq)
    push(mq, "q", 1, 2, partition="a")
    up_to_date = snapshot(mq)
    for _ in range(2):  # the second finds nothing, and does not forget what the first deleted
        call(mq, way, **queue)

    def lost(view: str) -> list[tuple[int, int, bool]]:
        window = call(mq, "read_window", queue_ids=[1], since=view, until=snapshot(mq))
        return [(row.partition_id, row.kept_from, row.unseen) for row in window]

    assert (lost(since), lost(up_to_date)) == ([(1, 3, False)], [])
    call(mq, "prune_journal", older_than=timedelta())
    assert (lost(since), lost(up_to_date)) == ([(1, 3, True)], [])
    assert broken(mq) == {}
