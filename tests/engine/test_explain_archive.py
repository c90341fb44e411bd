"""The archive's manifest is read by its indexes, with and without statistics; the cost does not grow with the
manifest."""

from collections.abc import Callable, Generator
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import FREEZE, assert_indexed, explained
from tests.engine.verbs import push

RUNS = 2_000


@pytest.fixture(scope="module", params=["never_analyzed", "analyzed"])
def old(module_database_url: str, request: pytest.FixtureRequest) -> Generator[psycopg.Connection]:
    """A partition that was archived message by message, except the last one, and others."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if not connection.execute("SELECT count(*) FROM skep.queues").fetchall()[0][0]:
            connection.execute(FREEZE)
            for queue in ("q", "other"):
                push(connection, queue, *range(RUNS + 1))
                archive(connection, queue)
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        yield connection


def archive(connection: psycopg.Connection, queue: str) -> None:
    query = "SELECT partition_id FROM skep.partition_list WHERE queue = %s"
    (partition,) = connection.execute(query, [queue]).fetchall()[0]
    connection.execute("SELECT skep._open_archive('/archive', %s)", [[queue]])
    files = [{"queue": queue, "day": "2026-01-31", "runs": [[partition, "Default", n, n + 1]]} for n in range(RUNS)]
    connection.execute("SELECT skep._begin_files(1, %s, %s)", [uuid4(), Jsonb(files)])
    connection.execute(
        "UPDATE skep.archive_files SET state = 'stored', path = id::text, bytes = 1, digest = '', stored_at = now()"
    )
    connection.execute("SELECT skep._mark_stored(%s)", [partition])


def cost(connection: psycopg.Connection, job: Callable[[], object]) -> int:
    job()
    plans = explained(connection, job, analyze=True)
    assert_indexed(plans, "archive_runs_partition")
    return sum(plan.rows_touched() for plan in plans)


def test_a_run_is_found_by_its_partition_and_offset(old: psycopg.Connection):
    def find() -> list[tuple[object, ...]]:
        return old.execute("SELECT first_offset, path FROM skep._archived_runs('{1}', '{1000}', '{1003}')").fetchall()

    assert [first for first, _ in find()] == [1000, 1001, 1002]
    assert cost(old, find) < 20


def test_a_plan_reads_behind_the_mark(old: psycopg.Connection):
    def plan() -> list[tuple[object, ...]]:
        return old.execute("SELECT first_offset, end_offset FROM skep._plan_archive('{q}')").fetchall()

    assert plan() == [(RUNS, RUNS + 1)]
    assert cost(old, plan) < 20
