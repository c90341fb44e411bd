"""settle_restored() repairs the transaction ids of a dump from another cluster, which may lie in the future here."""

import psycopg

from tests.engine.test_read import snapshot
from tests.engine.verbs import broken, call, drain, pop, push, take

# As if it came from a cluster that has counted further. A snapshot is "xmin:xmax:running".
FROM_AFAR = """
    UPDATE skep.messages SET xid = (xid::text::bigint + 1000000000)::text::xid8;
    UPDATE skep.journal SET xid = (xid::text::bigint + 1000000000)::text::xid8;
    UPDATE skep.partition_floors SET deleted_xid = '1000000700' WHERE deleted_xid IS NOT NULL;
    UPDATE skep.discoveries SET snapshot = '1000000900:1000000900:', server_started = 'epoch';
    UPDATE skep.subscriptions SET start_snapshot = '1000000900:1000000900:' WHERE start_snapshot IS NOT NULL;
"""


def settle(connection: psycopg.Connection) -> int:
    return call(connection, "repair_restored")[0][0]


def views(connection: psycopg.Connection) -> dict[str, bool]:
    """Return for each group whether its subscription has a snapshot."""
    return dict(connection.execute("SELECT group_name, start_snapshot IS NOT NULL FROM skep.subscriptions").fetchall())


def test_restored_messages_are_visible_and_groups_continue(mq: psycopg.Connection):
    push(mq, "q", "done", "a")
    push(mq, "q", "b", partition="other")
    assert take(mq, "q", batch=1, partition="Default") == ["done"]
    call(mq, "subscribe", group_name="new", queue="q", mode="new")
    mq.execute("UPDATE skep.subscriptions SET start_at = clock_timestamp() WHERE group_name = 'new'")
    call(mq, "seek", group_name="at", queue="q", position="1")
    assert views(mq) == {"g": False, "new": True, "at": True}
    mq.execute(FROM_AFAR)
    assert settle(mq) == 3
    assert settle(mq) == 0
    window = call(mq, "_read_window", queue_ids=[1], since=None, until=snapshot(mq))
    assert [(row.partition_id, row.first_offset, row.end_offset) for row in window] == [(1, 0, 2), (2, 0, 1)]
    assert views(mq) == {"g": False, "new": False, "at": True}
    push(mq, "q", "c")
    push(mq, "q", "d", partition="later")
    assert sorted(delivery.payload for delivery in drain(mq, "q")) == ["a", "b", "c", "d"]
    assert sorted(delivery.payload for delivery in drain(mq, "q", "new")) == ["c", "d"]
    assert sorted(delivery.payload for delivery in drain(mq, "q", "at")) == ["a", "c", "d"]
    assert broken(mq) == {}


def test_local_messages_are_unchanged(mq: psycopg.Connection):
    """Also messages of the calling transaction, whose id no snapshot has seen yet."""
    push(mq, "q", 1)
    pop(mq, "q")
    with mq.transaction():
        push(mq, "q", 2)
        assert settle(mq) == 0
        call(mq, "prune_journal")
    assert mq.execute("SELECT count(*) FROM skep.messages WHERE xid = '3'").fetchall() == [(0,)]
    assert mq.execute("SELECT count(*) FROM skep.discoveries").fetchall() == [(1,)]
