"""A push writes and reads the same with ten groups as with none."""

from collections.abc import Callable

import psycopg
import pytest

from tests.engine.plans import explained
from tests.engine.verbs import call, pop, push, push_to, take

WORK = """
    SELECT relname, n_tup_ins, n_tup_upd, n_tup_del, seq_scan, seq_tup_read, idx_scan, idx_tup_fetch
    FROM pg_stat_xact_user_tables WHERE schemaname = 'skep' ORDER BY relname
"""


def work(connection: psycopg.Connection, job: Callable[[], object]) -> dict[str, list[int]]:
    """Return the rows and scans of each table that a job caused, as the server counted them."""
    with connection.transaction():
        before = {name: counts for name, *counts in connection.execute(WORK).fetchall()}
        job()
        after = {name: counts for name, *counts in connection.execute(WORK).fetchall()}
    done = {name: [now - then for now, then in zip(after[name], before[name], strict=True)] for name in after}
    return {name: counts for name, counts in done.items() if any(counts)}


def subscribe_ten(connection: psycopg.Connection) -> None:
    """Ten groups: drained, lagging, with a lease, in another mode, only subscribed."""
    for number in range(10):
        group = f"g{number}"
        if number % 5 == 4:
            call(connection, "subscribe", group_name=group, queue="q", mode="new")
        elif number % 5 == 3:
            pop(connection, "q", group, batch=1)
        else:
            while number % 5 and take(connection, "q", group, batch=number % 5):
                pass
            pop(connection, "q", group, subscription_mode="new")


@pytest.mark.parametrize("partitions", [1, 50])
def test_ten_groups_cost_the_push_nothing(mq: psycopg.Connection, partitions: int):
    """Rows written and scans made, table by table (scenario L8)."""
    items = [("q", f"p{n % partitions}", n) for n in range(100)]
    push_to(mq, items)
    alone = work(mq, lambda: push_to(mq, items))
    subscribe_ten(mq)
    assert work(mq, lambda: push_to(mq, items)) == alone
    assert alone["messages"][0] == 100
    assert alone["journal"][0] == 1
    assert alone.keys() & {"group_queues", "discoveries", "starts", "runs", "subscriptions"} == set()
    assert [counts[1] for counts in alone.values()] == [0] * len(alone), "a push updates no row"


def test_ten_groups_add_no_statement_to_a_push(mq: psycopg.Connection):
    """The statements inside push_many, counted by auto_explain (scenario L8)."""
    push(mq, "q", 1)
    alone = explained(mq, lambda: push(mq, "q", 1, 2, 3))
    subscribe_ten(mq)
    crowded = explained(mq, lambda: push(mq, "q", 1, 2, 3))
    assert [plan.query for plan in crowded] == [plan.query for plan in alone]


def test_one_journal_row_per_push_and_queue(mq: psycopg.Connection):
    """A push adds one row, not one per message or partition (scenario L8)."""
    done = work(mq, lambda: push_to(mq, [("q", f"{n % 40}", n) for n in range(200)]))
    assert done["journal"][0] == 1
    done = work(mq, lambda: push_to(mq, [(f"{n % 3}", f"{n % 40}", n) for n in range(200)]))
    assert done["journal"][0] == 3
    partitions = mq.execute(
        "SELECT cardinality(partition_ids), first_offsets[1], last_offsets[1] FROM skep.journal LIMIT 1"
    )
    assert partitions.fetchall() == [(40, 0, 4)]
