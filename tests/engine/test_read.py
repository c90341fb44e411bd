"""Reading outside of groups, as Spark does, with few rights."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from skep.engine.install import install
from tests.conftest import FAST
from tests.engine.crowd import at_once, until
from tests.engine.test_privileges import as_role
from tests.engine.verbs import broken, call, configure, drain, push, push_to, refused


def snapshot(connection: psycopg.Connection) -> str:
    ((view,),) = connection.execute("SELECT snapshot::text FROM skep._read_snapshot(ARRAY['q'])").fetchall()
    return view


def test_the_journal_and_the_partitions_say_the_same(
    mq: psycopg.Connection, connect_module: Callable[[], psycopg.Connection]
):
    """Also about transactions that were open at one end of the window, or at both, and about those rolled back."""
    push_to(mq, [("q", partition, 0) for partition in "abcd"])
    writers = {partition: connect_module() for partition in "bcd"}
    for partition, writer in writers.items():
        writer.execute("BEGIN")
        push(writer, "q", 1, 2, partition=partition)
    since = snapshot(mq)
    writers["b"].execute("COMMIT")
    writers["c"].execute("ROLLBACK")
    push(mq, "q", 3, partition="a")
    until = snapshot(mq)
    push(mq, "q", 4, partition="a")
    writers["d"].execute("COMMIT")
    ask = "SELECT partition_id, first_offset, end_offset FROM skep.{}"
    journal = "_journal_window(ARRAY[1], %(since)s::pg_snapshot, %(until)s::pg_snapshot, NULL)"
    partitions = "_partition_window(ARRAY[1], %(since)s::pg_snapshot, '{}', %(until)s::pg_snapshot, NULL, NULL)"
    view = {"since": since, "until": until}
    by_journal = mq.execute(ask.replace("{}", journal, 1).encode(), view).fetchall()
    assert by_journal == [(1, 1, 2), (2, 1, 3)]
    assert by_journal == mq.execute(ask.replace("{}", partitions, 1).encode(), view).fetchall()


def test_a_group_is_put_where_a_reader_is(mq: psycopg.Connection):
    """Forward and back, leases dropped; nothing of it breaks what consumers rely on."""
    push(mq, "q", *range(10))
    with as_role(mq, "skep_consumer"):
        call(mq, "subscribe", group_name="g", queue="q", mode="all")
        (held,) = call(mq, "pop", queue="q", group_name="g")
        for at in (7, 3):
            call(mq, "_move_group", group_name="g", partition_ids=[1], start_offsets=[0], offsets=[at])
            assert call(mq, "lag", group_name="g")[0].lag == 10 - at
        with refused("SK003"):
            call(mq, "ack", lease=held.lease)
    assert broken(mq) == {}
    assert [delivery.payload for delivery in drain(mq, "q", "g")] == list(range(3, 10))


@pytest.mark.parametrize(("way", "queue"), [("retain", {}), ("clear_queue", {"queue": "q"})])
def test_what_is_deleted_unread_is_noticed(mq: psycopg.Connection, way: str, queue: dict[str, str]):
    """By the journal and, where it does not reach back, by the partitions. A reader that has seen it misses nothing."""
    configure(mq, "q", retention_seconds=0.000001)
    push_to(mq, [("q", "a", 0), ("q", "b", 0)])
    since = snapshot(mq)
    push(mq, "q", 1, 2, partition="a")
    up_to_date = snapshot(mq)
    for _ in range(2):  # the second finds nothing, and does not forget what the first deleted
        call(mq, way, **queue)

    def lost(view: str) -> list[tuple[int, int, bool]]:
        window = call(mq, "_read_window", queue_ids=[1], since=view, until=snapshot(mq))
        return [(row.partition_id, row.kept_from, row.unseen) for row in window]

    assert (lost(since), lost(up_to_date)) == ([(1, 3, False)], [])
    call(mq, "prune_journal", older_than=timedelta())
    assert (lost(since), lost(up_to_date)) == ([(1, 3, True)], [])
    assert broken(mq) == {}


def progress(connection: psycopg.Connection, group: str = "g") -> list[tuple[int, int, int]]:
    """Return lag, leases and processed messages of the group on its queues."""
    return [(row.lag, row.leased, row.processed) for row in call(connection, "group_status", group_name=group)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_follower_loses_its_leases_and_retries(mq: psycopg.Connection, concurrency: int):
    """Closed runs of a shared partition too: one open run is left, at the reader's place, and nothing is leased."""
    configure(mq, "q", concurrency=concurrency, retry_delay=0)
    push(mq, "q", *range(10))
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    held = [call(mq, "pop", queue="q", group_name="g", batch=2) for _ in range(concurrency)]
    call(mq, "fail", lease=held[0][0].lease, error="no")
    call(mq, "pop", queue="q", group_name="g", batch=2)
    call(mq, "_move_group", group_name="g", partition_ids=[1], start_offsets=[0], offsets=[5])
    assert mq.execute("SELECT first_offset, end_offset, lease_id, leases, attempts FROM skep.runs").fetchall() == [
        (5, None, None, 0, None)
    ]
    assert (progress(mq), broken(mq)) == ([(5, 0, 5)], {})
    assert [(delivery.payload, delivery.attempt) for delivery in drain(mq, "q", "g")] == [(n, 1) for n in range(5, 10)]
    assert broken(mq) == {}


def test_a_follower_has_never_processed_less_than_nothing(mq: psycopg.Connection):
    """Messages that it skipped are below its cursor; a reader that goes back to before them has skipped fewer."""
    push(mq, "q", *range(10))
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    assert call(mq, "force_complete", group_name="g", queue="q", older_than=timedelta())[0][0] == 10
    assert progress(mq) == [(0, 0, 0)]
    for offset, processed in ((3, 0), (8, 5), (1, 0)):
        call(mq, "_move_group", group_name="g", partition_ids=[1], start_offsets=[0], offsets=[offset])
        assert (progress(mq), broken(mq)) == ([(10 - offset, 0, processed)], {})


def test_a_follower_stays_within_the_partition(mq: psycopg.Connection):
    """A reader that is below the floor, or whose partition is gone, breaks nothing. New partitions get a run."""
    configure(mq, "q", max_size=4)
    push_to(mq, [("q", partition, n) for partition in "ab" for n in range(10)])
    call(mq, "retain")
    call(mq, "_move_group", group_name="g", partition_ids=[1, 2, 99], start_offsets=[0, 0, 0], offsets=[2, 50, 7])
    found = mq.execute("SELECT partition_id, first_offset FROM skep.runs ORDER BY 1").fetchall()
    assert (found, broken(mq)) == ([(1, 6), (2, 10)], {})
    assert [delivery.payload for delivery in drain(mq, "q", "g")] == [6, 7, 8, 9]


def test_a_follower_is_alive(mq: psycopg.Connection):
    push(mq, "q", 1)
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    mq.execute("UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 day'")
    call(mq, "_move_group", group_name="g", partition_ids=[1], start_offsets=[0], offsets=[1])
    assert call(mq, "detect_dead_groups") == []
    assert call(mq, "group_status", group_name="g")[0].missed_heartbeats == 0


def test_following_waits_for_retention_and_for_consumers(connect: Callable[..., psycopg.Connection]):
    """Against a random mix of consumers, retention and seeks: no deadlock, and nothing is broken."""
    setup = connect()
    configure(setup, "q", retention_seconds=0.001, concurrency=2)
    for number in range(4):
        push(setup, "q", *range(50), partition=f"{number}")
    call(setup, "subscribe", group_name="g", queue="q", mode="all")

    def follow(connection: psycopg.Connection) -> None:
        for at in range(40):
            call(
                connection,
                "_move_group",
                group_name="g",
                partition_ids=[4, 2, 3, 1],
                start_offsets=[0] * 4,
                offsets=[at] * 4,
            )

    def consume(connection: psycopg.Connection) -> None:
        for _ in range(40):
            found = call(connection, "pop", queue="q", group_name="g", batch=4, partitions=2)
            leases = list({delivery.lease for delivery in found})
            call(connection, "ack_many", leases=leases, ids=None, statuses=["completed"] * len(leases))

    def retain(connection: psycopg.Connection) -> None:
        for _ in range(20):
            call(connection, "retain", max_messages=10)

    at_once(*[partial(job, connect()) for job in (follow, follow, consume, consume, retain)])
    assert broken(setup) == {}


def mark(connection: psycopg.Connection, view: str | None = None) -> str:
    return connection.execute("SELECT skep._journal_mark(%s::pg_snapshot)", [view]).fetchall()[0][0]


def test_a_mark_tells_whether_the_log_is_the_same(mq: psycopg.Connection):
    """The log goes on, or is pruned: the same. A disk snapshot was started again: its rows are gone, or others."""

    def is_there() -> bool | None:
        return mq.execute("SELECT skep._has_journal_mark(%s::pg_snapshot, %s)", [view, seen]).fetchall()[0][0]

    assert mark(mq) is None
    push(mq, "q", "first")
    push(mq, "q", "seen")
    view = snapshot(mq)
    seen = mark(mq, view)
    assert (mark(mq), is_there()) == (seen, True)
    push(mq, "q", "later")
    assert (mark(mq, view), is_there()) == (seen, True)
    assert mark(mq) != seen
    (ident,) = seen.split("/")[1:2]
    for change, after in (
        ("DELETE FROM skep.journal WHERE id = %s", False),
        ("UPDATE skep.journal SET created_at = created_at + interval '1 us' WHERE id = %s", False),
        # The transaction id of an earlier row stands for one that was used again: the snapshot sees it as read.
        (
            "UPDATE skep.journal SET xid = (SELECT xid FROM skep.journal WHERE id = %s), id = DEFAULT WHERE id = 3",
            False,
        ),
    ):
        with mq.transaction(force_rollback=True):
            mq.execute(change.encode(), [ident])
            assert is_there() is after
    mq.execute("UPDATE skep.journal SET created_at = 'epoch'")
    call(mq, "prune_journal")
    assert is_there() is True, "its message is there"
    with mq.transaction(force_rollback=True):
        mq.execute("UPDATE skep.messages SET created_at = created_at + interval '1 us' WHERE \"offset\" = 1")
        assert is_there() is False
    with mq.transaction(force_rollback=True):
        mq.execute('DELETE FROM skep.messages WHERE "offset" > 0')
        assert is_there() is False, "the partition ends before it"
    call(mq, "clear_queue", queue="q")
    assert is_there() is None
    call(mq, "delete_queue", queue="q")
    assert is_there() is None


def is_primary(connection: psycopg.Connection) -> bool:
    return connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(False,)]


def test_a_promotion_makes_another_database(data_dir: Path):
    """A standby that is promoted, or a backup that is restored, gets a new timeline: transaction ids are used again."""
    seen: list[str] = []
    for signal in (None, "recovery.signal"):
        if signal:
            (directory,) = {
                found.parent for found in data_dir.rglob("PG_VERSION") if (found.parent / "global").is_dir()
            }
            (directory / signal).touch()
        with embedded.start(data_dir, settings={**FAST, "restore_command": "false"}) as server:
            install(server.url)
            with psycopg.connect(server.url, autocommit=True) as connection:
                until(partial(is_primary, connection), "the end of recovery")
                seen += [name for (name,) in connection.execute("SELECT database FROM skep._read_snapshot()")]
    assert [each.rsplit("/", 1)[1] for each in seen] == ["1", "2"]
    assert len({each.rsplit("/", 1)[0] for each in seen}) == 1
