"""Reading outside of groups and writing in batches use indexes, with and without statistics."""

from collections.abc import Generator

import psycopg
import pytest

from tests.engine.plans import FREEZE, assert_indexed, explained
from tests.engine.test_read import snapshot
from tests.engine.test_sink import publish, stage
from tests.engine.verbs import Row, call, push, push_to

PARTITIONS = 2_000
WINDOW = "SELECT * FROM skep._read_window(ARRAY[1], %s::pg_snapshot, pg_current_snapshot())"


@pytest.fixture(scope="module", params=["never_analyzed", "analyzed"])
def wide(module_database_url: str, request: pytest.FixtureRequest) -> Generator[psycopg.Connection]:
    """A queue of many partitions, in a session of its own that makes a new plan for each parameter."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if not connection.execute("SELECT count(*) FROM skep.queues").fetchall()[0][0]:
            connection.execute(FREEZE)
            push_to(connection, [("q", f"partition {n}", n) for n in range(PARTITIONS)])
            push_to(connection, [(f"other {n}", "p", n) for n in range(PARTITIONS)])
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        yield connection


def test_changed_partitions_cost_what_changed(wide: psycopg.Connection):
    """One push after the snapshot reads its journal row and the partitions that it names."""
    since = snapshot(wide)
    push(wide, "q", 1, partition="partition 7")
    wide.execute(WINDOW, [since])
    plans = explained(wide, lambda: wide.execute(WINDOW, [since]), analyze=True)
    assert_indexed(plans, "journal_pkey", "partitions_pkey", "partition_floors_pkey")
    assert sum(plan.rows_touched() for plan in plans) < 20
    assert len(wide.execute(WINDOW, [since]).fetchall()) == 1


def test_messages_are_read_by_their_key(wide: psycopg.Connection):
    def read() -> list[tuple[object, ...]]:
        return wide.execute("SELECT \"offset\" FROM skep._read('{1,5,9}', '{0,0,0}', '{1,1,1}')").fetchall()

    assert read() == [(0,), (0,), (0,)]
    assert_indexed(explained(wide, read), "messages_pkey")


def test_every_partition_is_read_by_its_keys(wide: psycopg.Connection):
    ask = "SELECT * FROM skep._read_window(ARRAY[1], NULL, pg_current_snapshot())"
    plans = explained(wide, lambda: wide.execute(ask))
    assert_indexed(plans, "partitions_queue_id_name_key", "partition_floors_pkey", "messages_pkey")


@pytest.mark.parametrize("partition", [None, "partition 7"])
def test_a_peek_reads_what_it_shows(wide: psycopg.Connection, partition: str | None):
    def peek() -> list[Row]:
        return call(wide, "peek", queue="q", partition=partition, max_rows=10)

    plans = explained(wide, peek, analyze=True)
    assert_indexed(plans, "queues_name_key", "partitions_queue_id_name_key", "messages_pkey")
    assert sum(plan.rows_touched() for plan in plans) < 50
    message = peek()[-1]
    plans = explained(wide, lambda: call(wide, "find_message", message=message.id), analyze=True)
    assert_indexed(plans, "partitions_pkey", "queues_pkey", "messages_pkey")
    assert call(wide, "find_message", message=message.id) == [message]


@pytest.mark.parametrize("transaction_ids", [None, ["t1", "t2"]])
def test_a_batch_is_published_by_its_keys(wide: psycopg.Connection, transaction_ids: list[str] | None):
    """A batch reads its own partitions and staged runs, however many others there are."""
    for _ in range(50):
        stage(wide, 0, 1, sink="another")

    def write(batch: int) -> None:
        pieces = [stage(wide, batch, 1, 2, transaction_ids=transaction_ids) for _ in range(2)]
        publish(wide, batch, *pieces, counts=[2, 2])

    wide.execute("DELETE FROM skep.sinks")
    write(1)
    plans = explained(wide, lambda: write(2), analyze=True)
    assert_indexed(plans, "sink_chunks_pkey", "sinks_pkey", "partition_floors_pkey")
    assert sum(plan.rows_touched() for plan in plans) < 50
