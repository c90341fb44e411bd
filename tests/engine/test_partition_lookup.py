"""partition_lookup: no kind of insert leaves it stale, and a damaged floor can be repaired."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.test_privileges import as_role
from tests.engine.threads import PATIENCE, at_once, until
from tests.engine.verbs import broken, call, drain, push, push_to, refused, take

Connect = Callable[..., psycopg.Connection]


def stale(connection: psycopg.Connection) -> int:
    return call(connection, "_stale_partitions")[0][0]


def resync(connection: psycopg.Connection) -> int:
    return call(connection, "resync_partition_lookup")[0][0]


def rows(connection: psycopg.Connection) -> list[tuple]:
    columns = "partition_id, first_offset, last_offset, nullif(last_created_at, '-infinity')"
    return connection.execute(f"SELECT {columns} FROM skep.partition_lookup ORDER BY partition_id").fetchall()


def test_every_kind_of_push_keeps_the_row_right(mq: psycopg.Connection):
    """Push, push_many, push of JSON, transaction and outbox, one partition and many, committed and rolled back."""
    call(mq, "push", queue="q", payload=Jsonb(1))
    push_to(mq, [("q", "a", 1), ("q", "Default", 2), ("r", "a", 3), ("q", "a", 4)])
    call(mq, "push", messages=Jsonb([{"queue": "q", "payload": 5}, {"queue": "r", "payload": 6}]))
    call(mq, "transaction", operations=Jsonb([{"push": {"queue": "q", "payload": 7, "partition": "a"}}]))
    mq.execute("INSERT INTO skep.outbox (queue, payload) VALUES ('q', '8'), ('s', '9')")
    with mq.transaction(force_rollback=True):
        push(mq, "q", "lost")
    partitions = (
        "SELECT queue, partition, first_offset, last_offset, messages, last_message_id, last_created_at "
        "FROM skep.partition_list"
    )
    counted = """
        SELECT q.name, p.name, min(m.offset_), max(m.offset_), count(*), skep.message_id(p.id, max(m.offset_)),
               max(m.created_at)
        FROM (SELECT *, "offset" AS offset_ FROM skep.messages) m JOIN skep.partitions p ON p.id = m.partition_id
        JOIN skep.queues q ON q.id = p.queue_id GROUP BY q.name, p.name, p.id
    """
    found = mq.execute(partitions).fetchall()
    assert len(found) == 5
    assert sorted(found) == sorted(mq.execute(counted).fetchall())
    assert (stale(mq), broken(mq)) == (0, {})


RAW = 'skep.messages (partition_id, "offset", created_at, payload)'


@pytest.mark.parametrize("role", ["skep_producer", "skep_consumer", "skep_admin"])
def test_a_raw_insert_is_refused(mq: psycopg.Connection, role: str):
    """INSERT and COPY, also in a transaction that has pushed before: only the functions write messages."""
    push(mq, "q", 1)
    with as_role(mq, role):
        with refused("42501", "messages"):
            mq.execute(f"INSERT INTO {RAW} VALUES (1, 1, now(), '1')")
        with refused("42501", "messages"), mq.transaction():
            if role != "skep_consumer":
                push(mq, "q", 2)
            with mq.cursor().copy(f"COPY {RAW} FROM STDIN") as copy:
                copy.write_row((1, 2, "2026-01-01", "1"))
    assert (stale(mq), mq.execute("SELECT count(*) FROM skep.messages").fetchall()) == (0, [(1,)])


def test_the_owner_cannot_make_it_stale(mq: psycopg.Connection):
    """The head is the last message: the next push goes behind any row that the owner of the tables inserts."""
    push(mq, "q", 1)
    mq.execute(f"INSERT INTO {RAW} VALUES (1, 1, clock_timestamp(), '2')")
    assert [row[1:3] for row in rows(mq)] == [(0, 1)]
    assert (stale(mq), [row.offset for row in push(mq, "q", 3)]) == (0, [2])
    assert ([delivery.payload for delivery in drain(mq, "q")], broken(mq)) == ([1, 2, 3], {})


DAMAGES = [
    "UPDATE skep.partition_floors SET first_offset = 2 WHERE partition_id = 1",
    "UPDATE skep.partition_floors SET first_offset = 99 WHERE partition_id = 1",
    "UPDATE skep.partition_floors SET first_offset = first_offset + 1",
    "DELETE FROM skep.partition_floors WHERE partition_id = 1",
    "DELETE FROM skep.partition_floors",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_resync_repairs_a_damaged_row(mq: psycopg.Connection, damage: LiteralString):
    """The check counts the damaged rows, resync repairs exactly those, and the check counts 0 again."""
    push(mq, "q", "a", "b", "c", partition="damaged")
    push(mq, "q", "d", partition="other")
    whole = rows(mq)
    partitions = mq.execute(damage).rowcount
    assert stale(mq) == partitions
    assert broken(mq)["partition_lookup matches the messages"] == partitions
    assert resync(mq) == partitions
    assert (rows(mq), stale(mq), broken(mq)) == (whole, 0, {})
    assert resync(mq) == 0
    assert [row.offset for row in push(mq, "q", "e", partition="damaged")] == [3]
    assert sorted(delivery.payload for delivery in drain(mq, "q")) == ["a", "b", "c", "d", "e"]


def test_resync_counts_missing_and_wrong_rows_together(mq: psycopg.Connection):
    """One row is missing and another is wrong: two partitions are repaired."""
    push_to(mq, [("q", "a", 1), ("q", "b", 2), ("q", "c", 3)])
    mq.execute("DELETE FROM skep.partition_floors WHERE partition_id = 1")
    mq.execute("UPDATE skep.partition_floors SET first_offset = 7 WHERE partition_id = 2")
    assert (stale(mq), resync(mq), stale(mq)) == (2, 2, 0)
    mq.execute("INSERT INTO skep.partitions (queue_id, name) VALUES (1, 'empty')")
    mq.execute("UPDATE skep.partition_floors SET first_offset = 7 WHERE partition_id = 2")
    assert (stale(mq), resync(mq), stale(mq)) == (2, 2, 0)


def test_resync_respects_what_retention_has_deleted(mq: psycopg.Connection):
    """The first retained offset follows the messages; an emptied partition continues where its groups are."""
    push(mq, "q", "a", "b", "c")
    assert take(mq, "q") == ["a", "b", "c"]
    mq.execute('DELETE FROM skep.messages WHERE "offset" < 2')
    assert (stale(mq), resync(mq)) == (1, 1)
    assert rows(mq)[0][1:3] == (2, 2)
    mq.execute("DELETE FROM skep.messages")
    assert (stale(mq), resync(mq), stale(mq)) == (1, 1, 0)
    assert rows(mq)[0][1:3] == (3, 2)
    mq.execute("DELETE FROM skep.partition_floors")
    assert (stale(mq), resync(mq), stale(mq)) == (1, 1, 0)
    assert [row.offset for row in push(mq, "q", "d")] == [3]
    assert (take(mq, "q"), broken(mq)) == (["d"], {})


def test_resync_waits_for_an_open_push(connect: Connect):
    """A push that has read the wrong floor commits first; the repair sees its message."""
    producer, observer, repairer = connect(), connect(), connect()
    push(observer, "q", "a")
    observer.execute("UPDATE skep.partition_floors SET first_offset = 1")
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with ThreadPoolExecutor() as threads:
        with producer.transaction():
            push(producer, "q", "b")
            repair = threads.submit(resync, repairer)
            until(lambda: observer.execute(waiting).fetchall(), "the repair to wait")
        assert repair.result(PATIENCE) == 1
    assert [row[1:3] for row in rows(observer)] == [(0, 1)]
    assert (stale(observer), broken(observer)) == (0, {})


def test_a_partition_without_messages_is_not_stale(mq: psycopg.Connection):
    """An empty partition: created by a push that stored nothing there, or by hand."""
    call(mq, "configure_queue", queue="q")
    mq.execute("INSERT INTO skep.partitions (queue_id, name) VALUES (1, 'empty')")
    assert (stale(mq), resync(mq), stale(mq)) == (1, 1, 0)
    assert [row.offset for row in push(mq, "q", "a", partition="empty")] == [0]


def test_resync_is_safe_while_pushes_run(connect: Connect):
    """With several servers nothing is lost or overwritten with an older head, and there is no deadlock."""
    partitions = [("q", f"{n}") for n in range(6)]

    def produce(connection: psycopg.Connection) -> None:
        for number in range(25):
            push_to(
                connection, [(*partition, number) for partition in (partitions if number % 2 else reversed(partitions))]
            )

    def repair(connection: psycopg.Connection) -> int:
        return sum(resync(connection) for _ in range(25))

    push_to(connect(), [(*partition, "first") for partition in partitions])
    repairs = at_once(*[partial(produce, connect()) for _ in range(3)], partial(repair, connect()))
    assert repairs[-1] == 0
    assert (stale(connect()), broken(connect())) == (0, {})
    assert connect().execute("SELECT DISTINCT last_offset FROM skep.partition_lookup").fetchall() == [(75,)]
