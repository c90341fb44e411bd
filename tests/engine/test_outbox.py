"""The outbox: rows inserted in the caller's own transaction are in the log if, and only if, it commits."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.engine.threads import PATIENCE, at_once
from tests.engine.verbs import broken, call, configure, drain, pass_time, pop, push, refused

Connect = Callable[..., psycopg.Connection]
INSERT = "INSERT INTO skep.outbox (queue, partition, payload) VALUES (%s, %s, %s)"


def publish(connection: psycopg.Connection, *payloads: object, queue: str = "q", partition: str = "Default") -> None:
    for payload in payloads:
        connection.execute(INSERT, [queue, partition, Jsonb(payload)])


def stored(connection: psycopg.Connection) -> list:
    """Return the payloads in the log, partition by partition in offset order."""
    rows = connection.execute('SELECT payload FROM skep.messages ORDER BY partition_id, "offset"').fetchall()
    return [payload for (payload,) in rows]


def left_behind(connection: psycopg.Connection) -> int:
    counts = "SELECT (SELECT count(*) FROM skep.outbox) + (SELECT count(*) FROM skep.outbox_transactions)"
    return connection.execute(counts).fetchall()[0][0]


def in_a_long_transaction(connection: psycopg.Connection, producer: int, everyone: threading.Barrier) -> None:
    """Insert, and commit only after every other producer has inserted too, so that none may wait."""
    with connection.transaction():
        publish(connection, [producer, 0])
        everyone.wait(PATIENCE)
        publish(connection, [producer, 1], [producer, 2])
        everyone.wait(PATIENCE)


def test_no_producer_waits_for_the_open_transaction_of_another(connect: Connect):
    """Eight long transactions are open on one partition at once.

    Every message arrives, in order, with dense offsets (scenario L2).
    """
    everyone = threading.Barrier(8)
    patience = {"options": "-c lock_timeout=5s -c statement_timeout=20s"}
    at_once(*[partial(in_a_long_transaction, connect(**patience), n, everyone) for n in range(8)])
    observer = connect()
    deliveries = drain(observer, "q", batch=5)
    assert [delivery.offset for delivery in deliveries] == list(range(24))
    for producer in range(8):
        assert [d.payload[1] for d in deliveries if d.payload[0] == producer] == [0, 1, 2]
    assert (left_behind(observer), broken(observer)) == (0, {})


def test_an_open_transaction_hides_no_message_of_others(connect: Connect):
    """A group reads on while an older transaction is open, and gets its rows when it commits (scenario L2)."""
    slow, fast, reader = connect(), connect(options="-c lock_timeout=100ms"), connect()
    slow.execute("BEGIN")
    publish(slow, "slow")
    publish(fast, "fast")
    push(fast, "q", "direct")
    assert [delivery.payload for delivery in drain(reader, "q")] == ["fast", "direct"]
    slow.execute("COMMIT")
    assert [(delivery.payload, delivery.offset) for delivery in drain(reader, "q")] == [("slow", 2)]


def test_rollback_publishes_nothing(mq: psycopg.Connection):
    """Neither a transaction that rolls back nor one that fails at commit leaves anything (scenario L3)."""
    with mq.transaction(force_rollback=True):
        publish(mq, "lost", partition="never")
    with refused("22012"), mq.transaction():
        publish(mq, "lost")
        mq.execute("SELECT 1 / 0")
    assert (stored(mq), left_behind(mq)) == ([], 0)
    assert mq.execute("SELECT count(*) FROM skep.queues").fetchall() == [(0,)]


def test_savepoints_publish_the_rows_that_they_keep(mq: psycopg.Connection):
    """Rolled back savepoints publish nothing, in whatever order notes and rows were written (scenario L3)."""
    with mq.transaction():
        with mq.transaction(force_rollback=True):
            publish(mq, "lost 1")
        publish(mq, "kept 1")
        with mq.transaction(force_rollback=True):
            publish(mq, "lost 2")
            with mq.transaction():
                publish(mq, "lost 3")
        with mq.transaction():
            publish(mq, "kept 2")
            with mq.transaction(force_rollback=True):
                publish(mq, "lost 4")
        publish(mq, "kept 3")
    assert (stored(mq), left_behind(mq)) == (["kept 1", "kept 2", "kept 3"], 0)
    with mq.transaction():
        with mq.transaction():
            publish(mq, "kept 4")
        with mq.transaction(force_rollback=True):
            publish(mq, "lost 5")
    assert (stored(mq), left_behind(mq)) == (["kept 1", "kept 2", "kept 3", "kept 4"], 0)


def test_many_statements_keep_their_order_in_each_partition(mq: psycopg.Connection):
    """Rows for several partitions, over many statements of one transaction.

    Inserts of many rows keep their order too (scenario L2).
    """
    with mq.transaction():
        for number in range(30):
            publish(mq, number, partition=f"p{number % 3}")
        mq.execute(
            "INSERT INTO skep.outbox (queue, partition, payload)"
            " SELECT 'q', 'p' || n % 3, to_jsonb(n) FROM generate_series(30, 89) AS n ORDER BY n"
        )
        assert stored(mq) == []
    for partition in range(3):
        deliveries = drain(mq, "q", partition=f"p{partition}")
        assert [d.payload for d in deliveries] == list(range(partition, 90, 3))
        assert [d.offset for d in deliveries] == list(range(30))
    journal = mq.execute("SELECT count(*), max(cardinality(partition_ids)) FROM skep.journal").fetchall()
    assert journal == [(1, 3)]  # one transaction is one append


def test_copy_into_the_outbox(mq: psycopg.Connection):
    """COPY publishes as INSERT does, headers and transaction ids included (scenario L2)."""
    columns = "queue, partition, payload, headers, transaction_id"
    rows = [("q", "p", Jsonb(n), Jsonb({"n": n}), f"t{n}") for n in range(50)]
    with mq.transaction(), mq.cursor().copy(f"COPY skep.outbox ({columns}) FROM STDIN") as copy:
        for row in [*rows, rows[7]]:
            copy.write_row(row)
    deliveries = pop(mq, "q")
    assert [(d.payload, d.headers, d.transaction_id) for d in deliveries] == [(n, {"n": n}, f"t{n}") for n in range(50)]


def test_a_trigger_on_the_users_own_table_publishes(mq: psycopg.Connection):
    """Rows of the application and messages are committed or rolled back together (scenario L2)."""
    with own_table(mq, "AFTER INSERT ON orders"):
        with mq.transaction(force_rollback=True):
            mq.execute("INSERT INTO orders VALUES (1)")
        assert stored(mq) == []
        with mq.transaction():
            mq.execute("INSERT INTO orders VALUES (2), (3)")
        assert stored(mq) == [{"id": 2}, {"id": 3}]


def test_a_deferred_trigger_of_the_user_publishes(mq: psycopg.Connection):
    """Rows that are inserted during COMMIT, after the outbox has been moved once, are moved as well (scenario L2)."""
    with own_table(mq, "AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED", kind="CONSTRAINT TRIGGER"):
        with mq.transaction():
            publish(mq, "early")
            mq.execute("INSERT INTO orders VALUES (1)")
        assert (stored(mq), left_behind(mq)) == (["early", {"id": 1}], 0)


def test_constraints_set_immediate_publish_at_once(mq: psycopg.Connection):
    """Each INSERT is appended by itself, and still disappears if the transaction rolls back (scenarios L2, L3)."""
    with mq.transaction(force_rollback=True):
        mq.execute("SET CONSTRAINTS ALL IMMEDIATE")
        publish(mq, "lost")
        assert stored(mq) == ["lost"]
    with mq.transaction():
        mq.execute("SET CONSTRAINTS ALL IMMEDIATE")
        publish(mq, "at once")
        publish(mq, "again")
    assert (stored(mq), left_behind(mq)) == (["at once", "again"], 0)


@contextmanager
def own_table(connection: psycopg.Connection, when: LiteralString, kind: LiteralString = "TRIGGER") -> Generator[None]:
    connection.execute("CREATE TABLE orders (id integer)")
    connection.execute(
        "CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO skep.outbox (queue, payload) VALUES ('orders', jsonb_build_object('id', NEW.id));"
        " RETURN NULL; END $$"
    )
    trigger = sql.SQL("CREATE {} announce {} FOR EACH ROW EXECUTE FUNCTION announce()")
    connection.execute(trigger.format(sql.SQL(kind), sql.SQL(when)))
    yield
    connection.execute("DROP TABLE orders; DROP FUNCTION announce()")


def test_created_at_is_taken_at_commit(connect: Connect):
    """The time of a message is that of its append, not that of the INSERT (scenario L2)."""
    slow, fast = connect(), connect()
    slow.execute("BEGIN")
    publish(slow, "slow")
    publish(fast, "fast")
    (between,) = fast.execute("SELECT clock_timestamp()").fetchall()[0]
    slow.execute("COMMIT")
    times = fast.execute('SELECT payload, created_at FROM skep.messages ORDER BY "offset"').fetchall()
    assert [payload for payload, _ in times] == ["fast", "slow"]
    assert times[0][1] <= between <= times[1][1]


def test_the_rules_of_push_hold_at_commit(mq: psycopg.Connection):
    """Duplicates are left out; an item over the limit fails the commit and the whole transaction (scenario L5)."""
    configure(mq, "q", max_payload_bytes=1000)
    with mq.transaction():
        for payload in ("first", "repeat"):
            mq.execute(
                "INSERT INTO skep.outbox (queue, payload, transaction_id) VALUES ('q', %s, 't')", [Jsonb(payload)]
            )
    assert stored(mq) == ["first"]
    with refused("SK004", "item 1"), mq.transaction():
        publish(mq, "fine")
        publish(mq, "x" * 100_000)  # compressed in the outbox, but its full size counts
    assert (stored(mq), left_behind(mq)) == (["first"], 0)


def test_a_group_discovers_an_outbox_commit_after_its_journal_is_pruned(mq: psycopg.Connection):
    """The group drained the partition long ago."""
    publish(mq, 1)
    assert [d.payload for d in drain(mq, "q")] == [1]
    pass_time(mq, 3600)
    mq.execute("SELECT skep.prune_journal()")
    publish(mq, 2)
    assert [d.payload for d in drain(mq, "q")] == [2]


@pytest.fixture
def producer(mq: psycopg.Connection) -> Generator[psycopg.Connection]:
    """The connection, with a role that may only produce."""
    mq.execute("DROP ROLE IF EXISTS shop; CREATE ROLE shop IN ROLE skep_producer; SET ROLE shop")
    yield mq
    mq.execute("RESET ROLE; DROP ROLE shop")


def test_a_producer_may_insert_into_the_outbox_and_no_more(producer: psycopg.Connection):
    """A role with skep_producer publishes through the outbox; it cannot read, change or forge rows (scenario L2)."""
    publish(producer, "hello", partition="p")
    for forbidden in (
        "SELECT * FROM skep.outbox",
        "UPDATE skep.outbox SET queue = 'x'",
        "DELETE FROM skep.outbox",
        "INSERT INTO skep.outbox (xid, queue, payload) VALUES ('7', 'q', '1')",
        "INSERT INTO skep.outbox_transactions VALUES ('7')",
        "INSERT INTO skep.messages VALUES (1, 1, now())",
        "SELECT * FROM skep.messages",
        "SELECT skep._move_outbox()",
    ):
        with refused("42501"):
            producer.execute(forbidden)
    producer.execute("RESET ROLE")
    assert [d.payload for d in drain(producer, "q")] == ["hello"]
    producer.execute("SET ROLE shop")


def status(connection: psycopg.Connection) -> tuple[int, float | None, int]:
    columns = "SELECT transactions, oldest_seconds, waiting FROM skep.outbox_status()"
    return connection.execute(columns).fetchall()[0]


def test_the_status_reports_open_transactions(connect: Connect):
    one, two, observer = connect(), connect(), connect()
    assert status(observer) == (0, None, 0)
    with one.transaction():
        publish(one, 1, 2)
        with two.transaction():
            publish(two, 3)
            transactions, oldest, waiting = status(observer)
            assert (transactions, waiting) == (2, 0)
            assert oldest is not None
            assert 0 < oldest < PATIENCE
            assert status(two)[::2] == (1, 0), "one's own are no news"
        assert status(observer)[0] == 1
    assert status(observer) == (0, None, 0)


def test_the_status_reports_waiting_rows(connect: Connect):
    """Rows that were inserted while triggers were off wait for the mover too; it publishes them in order."""
    connection, observer = connect(), connect()
    connection.execute("SET session_replication_role = replica")
    connection.execute(
        INSERT.replace("VALUES (%s, %s, %s)", "SELECT 'q', 'p', to_jsonb(n) FROM generate_series(1, 3) n")
    )
    assert status(observer) == (0, None, 3)
    connection.execute("INSERT INTO skep.outbox (queue, payload) SELECT 'q', '0' FROM generate_series(1, 10000)")
    assert status(observer) == (0, None, 10_000), "it stops counting"
    connection.execute("DELETE FROM skep.outbox WHERE partition = 'Default'")
    assert move(observer) == (3, 0, ["q"])
    assert (stored(observer), status(observer)) == ([1, 2, 3], (0, None, 0))


STRICT = ["REPEATABLE READ", "SERIALIZABLE"]
strict = pytest.mark.parametrize("level", STRICT)


def move(connection: psycopg.Connection, max_rows: int = 10_000) -> tuple[int, int, list[str]]:
    """Publish rows committed under REPEATABLE READ or SERIALIZABLE, as upkeep does once a second."""
    columns = "SELECT messages, refused, queues FROM skep.move_committed_outbox(%s)"
    return connection.execute(columns, [max_rows]).fetchall()[0]


@strict
def test_strict_transactions_commit_while_others_push(connect: Connect, level: LiteralString):
    """The COMMIT does not depend on pushes of others since the snapshot; the messages follow, each once."""
    own, other, observer = connect(), connect(), connect()
    own.execute("CREATE TABLE orders (id integer)")
    push(other, "q", "before")
    own.execute(f"BEGIN ISOLATION LEVEL {level}")
    own.execute("INSERT INTO orders VALUES (1)")
    publish(own, "one", "two")
    push(other, "q", "between")
    publish(own, "three", partition="another")
    own.execute("COMMIT")
    assert observer.execute("SELECT count(*) FROM orders").fetchall() == [(1,)]
    assert (stored(observer), status(observer)) == (["before", "between"], (0, None, 3))
    assert move(observer) == (3, 0, ["q"])
    assert (stored(observer), left_behind(observer)) == (["before", "between", "one", "two", "three"], 0)
    assert move(observer) == (0, 0, [])
    assert broken(observer) == {}
    assert len(drain(observer, "q")) == 5


@strict
def test_strict_transactions_publish_nothing_when_they_roll_back(mq: psycopg.Connection, level: LiteralString):
    mq.execute(f"BEGIN ISOLATION LEVEL {level}")
    publish(mq, "lost")
    mq.execute("ROLLBACK")
    mq.execute(f"BEGIN ISOLATION LEVEL {level}")
    publish(mq, "kept")
    with mq.transaction(force_rollback=True):
        publish(mq, "lost, too")
    mq.execute("COMMIT")
    assert (move(mq), stored(mq), left_behind(mq)) == ((1, 0, ["q"]), ["kept"], 0)


@strict
def test_strict_transactions_keep_the_rules_of_push(mq: psycopg.Connection, level: LiteralString):
    """A payload over the limit and a queue that refuses pushes fail the COMMIT; duplicates are left out later."""
    configure(mq, "q", max_payload_bytes=1000)
    configure(mq, "closed", semantics="pub_sub", block_without_subscribers=True)
    for error, queue, payload in (("SK004", "q", "x" * 2000), ("SK006", "closed", 1)):
        mq.execute(f"BEGIN ISOLATION LEVEL {level}")
        publish(mq, "fine", payload, queue=queue)
        with refused(error):
            mq.execute("COMMIT")
    assert left_behind(mq) == 0
    for payload in ("first", "repeat"):
        mq.execute(f"BEGIN ISOLATION LEVEL {level}")
        row = "INSERT INTO skep.outbox (queue, payload, transaction_id) VALUES ('q', %s, 't')"
        mq.execute(row, [Jsonb(payload)])
        mq.execute("COMMIT")
    assert (move(mq), stored(mq), left_behind(mq)) == ((1, 0, ["q"]), ["first"], 0)


def test_a_connection_that_is_strict_by_default(connect: Connect):
    """Each statement is a transaction of its own; the mover's too, and it need not be READ COMMITTED."""
    own = connect(options="-c default_transaction_isolation=serializable")
    publish(own, 1)
    publish(own, 2)
    assert (move(own), stored(own), left_behind(own)) == ((2, 0, ["q"]), [1, 2], 0)


def commit_strictly(connection: psycopg.Connection, producer: int, number: int) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    for step in range(3):
        publish(connection, [producer, number, step], partition=f"{number % 2}")
    connection.execute("COMMIT")


def produce_strictly(connection: psycopg.Connection, producer: int) -> None:
    for number in range(25):
        commit_strictly(connection, producer, number)


def keep_moving(connection: psycopg.Connection) -> None:
    for _ in range(40):
        move(connection, 7)


def push_directly(connection: psycopg.Connection) -> None:
    for number in range(50):
        push(connection, "q", ["direct", number, 0], partition=f"{number % 2}")


def test_movers_at_once_publish_each_row_once_and_in_order(connect: Connect):
    """Four producers, three movers and direct pushes at once: every row once, the rows of each producer in order."""
    producers = [partial(produce_strictly, connect(), n) for n in range(4)]
    at_once(*producers, *[partial(keep_moving, connect()) for _ in range(3)], partial(push_directly, connect()))
    observer = connect()
    while move(observer)[0]:
        pass
    for partition in ("0", "1"):
        payloads = [tuple(d.payload) for d in drain(observer, "q", partition=partition)]
        for producer in (0, 1, 2, 3, "direct"):
            own = [payload for payload in payloads if payload[0] == producer]
            assert own == sorted(own)
            assert len(own) == len(set(own)) == (25 if producer == "direct" else 39 if partition == "0" else 36)
    assert (left_behind(observer), broken(observer)) == (0, {})


def test_a_mover_does_not_wait_for_locks(connect: Connect):
    """Rows of a locked partition stay for later, in order; the others are published."""
    holder, own, mover = connect(), connect(), connect(options="-c lock_timeout=100ms")
    push(holder, "q", "there", partition="leased")
    for number in (1, 2):
        own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        publish(own, f"leased {number}", partition="leased")
        publish(own, f"free {number}", partition="free")
        own.execute("COMMIT")
    with holder.transaction():
        push(holder, "q", "pushed", partition="leased")
        assert move(mover) == (2, 0, ["q"])
        assert status(mover)[2] == 2
    assert move(mover) == (2, 0, ["q"])
    assert stored(mover) == ["there", "pushed", "leased 1", "leased 2", "free 1", "free 2"]


def test_a_mover_does_not_overtake_another_within_a_partition(connect: Connect):
    """Two movers at once: the rows behind those of the first wait for it."""
    own, first, second = connect(), connect(), connect()
    push(own, "q", 0)
    push(own, "q", 0, partition="other")
    for number in (1, 2):
        own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        publish(own, number)
        publish(own, number, partition="other")
        own.execute("COMMIT")
    with first.transaction(force_rollback=True):
        assert move(first, 1)[0] == 1
        assert move(second) == (2, 0, ["q"])
        assert stored(second) == [0, 0, 1, 2], "those of the other partition"
    assert move(second) == (2, 0, ["q"])
    assert stored(second) == [0, 1, 2, 0, 1, 2]


def test_a_mover_does_not_wait_for_a_partition_to_be_created(connect: Connect):
    """Another transaction is creating the queue, or one partition, and stays open: the other rows are published."""
    holder, own, mover = connect(), connect(), connect()
    own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    publish(own, "q")
    publish(own, "r", queue="r")
    own.execute("COMMIT")
    with holder.transaction():
        push(holder, "q", "first")
        assert (move(mover), stored(mover)) == ((1, 0, ["r"]), ["r"])
    assert move(mover) == (1, 0, ["q"])
    assert sorted(stored(mover)) == ["first", "q", "r"]


def test_rows_that_are_refused_later_block_their_partition_only(mq: psycopg.Connection):
    """The limit was lowered after the COMMIT: the row and those behind it stay until the limit is raised again."""
    mq.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    publish(mq, "x" * 2000, "behind", partition="large")
    publish(mq, "small", partition="small")
    publish(mq, "elsewhere", queue="r")
    mq.execute("COMMIT")
    configure(mq, "q", max_payload_bytes=1000)
    assert move(mq) == (2, 2, ["q", "r"])
    assert (sorted(stored(mq)), status(mq)[2]) == (["elsewhere", "small"], 2)
    assert move(mq) == (0, 2, [])
    configure(mq, "q", max_payload_bytes=10_000)
    assert move(mq) == (2, 0, ["q"])
    assert (len(stored(mq)), left_behind(mq)) == (4, 0)


@pytest.mark.parametrize("why", ["refused", "locked"])
def test_rows_that_stay_do_not_hide_rows_behind_them(connect: Connect, why: str):
    """A call passes any number of them, and keeps the order of their partition."""
    own, mover, other = connect(), connect(), connect()
    push(other, "q", "first", partition="large")
    own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    publish(own, *["x" * 2000] * 7, partition="large")
    publish(own, "behind", partition="small")
    publish(own, "last", partition="large")
    own.execute("COMMIT")
    if why == "refused":
        configure(mover, "q", max_payload_bytes=1000)
        assert [move(mover, 3), move(mover, 3)] == [(1, 3, ["q"]), (0, 3, [])]
        configure(mover, "q", max_payload_bytes=10_000)
    else:
        with other.transaction():
            push(other, "q", "second", partition="large")
            assert [move(mover, 3), move(mover, 3)] == [(1, 0, ["q"]), (0, 0, [])]
    assert [move(mover, 3)[0] for _ in range(4)] == [3, 3, 2, 0]
    assert [row.payload for row in call(mover, "peek", queue="q", partition="large")][-1] == "last"
    assert (left_behind(mover), broken(mover)) == (0, {})


def test_a_mover_does_not_wait_for_each_of_many_partitions(connect: Connect):
    """Another transaction has created their queue and stays open."""
    holder, own, mover = connect(), connect(), connect()
    own.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    for number in range(100):
        publish(own, "q", partition=str(number))
    publish(own, "r", queue="r")
    own.execute("COMMIT")
    with holder.transaction():
        push(holder, "q", "first")
        mover.execute("SET statement_timeout = '3s'")
        while not stored(mover):
            assert move(mover) in [(1, 0, ["r"]), (0, 0, [])]
    assert (move(mover), left_behind(mover)) == ((100, 0, ["q"]), 0)
