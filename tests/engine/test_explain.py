"""Every hot query uses its index, with and without statistics, and no call runs a statement per row."""

from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import FREEZE, assert_indexed, explained
from tests.engine.verbs import Row, ack, call, configure, drain, pop, push, push_to, take

PARTITIONS, MESSAGES = 2_000, 50_000


def load(connection: psycopg.Connection) -> None:
    """A queue of many partitions that one group has nearly drained and another has just discovered."""
    connection.execute(FREEZE)
    for lap in range(5):
        items = [("ns.big", f"partition {n % PARTITIONS}", n) for n in range(MESSAGES // 5)]
        push_to(connection, items, transaction_ids=[f"{lap} {n}" for n in range(len(items))])
    push_to(connection, [(f"ns.small{n}", "p", n) for n in range(20)])
    drain(connection, "ns.big", "drained", batch=100_000, partitions=10_000)
    for group in ("fresh", "namespace"):
        ack(connection, pop(connection, "ns.big", group, batch=1))
    take(connection, None, "namespace", namespace="ns")
    take(connection, None, "namespace", task="big")
    push_to(connection, [("ns.big", f"partition {n}", n) for n in range(10)])


@pytest.fixture(scope="module", params=["never_analyzed", "analyzed"])
def big(module_database_url: str, request: pytest.FixtureRequest) -> Generator[psycopg.Connection]:
    """The loaded queue, in a session of its own that makes a new plan for each parameter."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if not connection.execute("SELECT count(*) FROM skep.queues").fetchall()[0][0]:
            load(connection)
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        analyzed = connection.execute(
            "SELECT reltuples > 0 FROM pg_class WHERE oid = 'skep.messages'::regclass"
        ).fetchall()
        assert analyzed == [(request.param == "analyzed",)]
        yield connection


PARTITION = {"queues_name_key", "partitions_queue_id_name_key", "partition_floors_pkey", "messages_pkey"}
GROUP = {"subscriptions_scope", "queues_name_key", "discoveries_pkey"}
READY_LIST = {"runs_ready", "messages_pkey"}


@pytest.mark.parametrize("partitions", [1, 200])
def test_push(big: psycopg.Connection, partitions: int):
    items = [("ns.big", f"partition {n % partitions}", n) for n in range(400)]
    assert_indexed(explained(big, lambda: push_to(big, items)), *PARTITION)
    ids = [f"0 {n}" for n in range(400)]
    assert_indexed(
        explained(big, lambda: push_to(big, items, transaction_ids=ids)), *PARTITION, "messages_transaction_id"
    )


def test_push_that_creates_partitions(big: psycopg.Connection):
    with big.transaction(force_rollback=True):
        items = [(f"ns.{n % 3}", f"new {n}", n) for n in range(300)] + [("ns.big", f"new {n}", n) for n in range(300)]
        assert_indexed(explained(big, lambda: push_to(big, items)), *PARTITION)


def test_outbox(big: psycopg.Connection):
    insert = (
        "INSERT INTO skep.outbox (queue, partition, payload)"
        " SELECT 'ns.big', 'partition ' || n, '1' FROM generate_series(1, 300) n"
    )
    assert_indexed(explained(big, lambda: big.execute(insert)), *PARTITION, "outbox_pkey", "outbox_transactions_pkey")


@pytest.mark.parametrize("group", ["drained", "fresh"])
@pytest.mark.parametrize("partitions", [1, 50])
def test_pop_from_the_queue(big: psycopg.Connection, group: str, partitions: int):
    with big.transaction(force_rollback=True):
        plans = explained(big, lambda: pop(big, "ns.big", group, partitions=partitions))
        assert_indexed(plans, *GROUP, *READY_LIST)


def test_pop_of_a_group_that_discovers_every_partition(big: psycopg.Connection):
    """The first discovery reads the partitions of the queue by their index."""
    with big.transaction(force_rollback=True):
        plans = explained(big, lambda: pop(big, "ns.big", "stranger", subscription_mode="new"))
        assert_indexed(
            plans, "subscriptions_scope", "queues_name_key", "partitions_queue_id_name_key", "partition_floors_pkey"
        )


@pytest.mark.parametrize("group", ["drained", "fresh", "stranger"])
def test_pop_from_a_partition(big: psycopg.Connection, group: str):
    with big.transaction(force_rollback=True):
        plans = explained(big, lambda: pop(big, "ns.big", group, partition="partition 7"))
        assert_indexed(plans, "partitions_queue_id_name_key", "runs_pkey", "messages_pkey")


SCOPES = [{"namespace": "ns"}, {"task": "big"}, {"namespace": "ns", "task": "big"}]


@pytest.mark.parametrize("scope", SCOPES)
def test_pop_from_a_namespace(big: psycopg.Connection, scope: dict):
    with big.transaction(force_rollback=True):
        plans = explained(big, lambda: pop(big, None, "namespace", **scope))
        assert_indexed(plans, "subscriptions_scope", "group_queues_pkey", *READY_LIST)


def test_pop_without_work(big: psycopg.Connection):
    with big.transaction(force_rollback=True):
        drain(big, "ns.big", "drained", partitions=100)
        plans = explained(big, lambda: pop(big, "ns.big", "drained"))
        assert_indexed(plans, *GROUP, "journal_pkey", "runs_ready")


def acks(connection: psycopg.Connection, **options: Any) -> dict[str, Callable[[], object]]:
    """One ack of each kind, each with a lease of its own."""
    lease = {
        name: pop(connection, "ns.big", "fresh", **options)
        for name in ("ack", "one", "fail", "extend", "release", "many")
    }
    return {
        "ack": lambda: ack(connection, lease["ack"]),
        "one": lambda: call(connection, "ack", lease=lease["one"][0].lease, id=lease["one"][0].id),
        "fail": lambda: call(connection, "fail", lease=lease["fail"][0].lease, error="oops"),
        "extend": lambda: call(connection, "extend", lease=lease["extend"][0].lease),
        "release": lambda: call(connection, "release", lease=lease["release"][0].lease),
        "many": lambda: ack_each(connection, lease["many"]),
    }


@pytest.mark.parametrize("verb", ["ack", "one", "fail", "extend", "release", "many"])
def test_acks(big: psycopg.Connection, verb: str):
    with big.transaction(force_rollback=True):
        assert_indexed(explained(big, acks(big, partitions=20)[verb]), "runs_pkey")


def test_lag_of_one_partition(big: psycopg.Connection):
    """Lag reads indexes, never a COUNT."""
    plans = explained(big, lambda: call(big, "lag", group_name="fresh", queue="ns.big", partition="partition 7"))
    assert_indexed(plans, "partition_floors_pkey", "messages_pkey", "runs_pkey")


def statements(connection: psycopg.Connection, job: Callable[[], object]) -> list[str]:
    """Return the statements that a call runs, in order, without the foreign key check of each new partition."""
    queries = [" ".join(plan.query.split()) for plan in explained(connection, job)]
    return [query for query in queries if not query.endswith("FOR KEY SHARE OF x")]


def test_a_push_runs_as_many_statements_for_a_thousand_as_for_one(mq: psycopg.Connection):
    push_to(mq, [("q", f"{n}", n) for n in range(1000)])
    one = statements(mq, lambda: push(mq, "q", 1, partition="1"))
    assert statements(mq, lambda: push(mq, "q", *range(1000), partition="1")) == one
    thousand_partitions = statements(mq, lambda: push_to(mq, [("q", f"{n}", n) for n in range(1000)]))
    assert len(thousand_partitions) <= len(one) + 1  # to find the partition of each item
    few = statements(mq, lambda: push_to(mq, [("q", "1", 1), ("q", "2", 2)]))
    assert thousand_partitions == few
    new = [
        statements(mq, lambda size=size: push_to(mq, [(f"q{size}", f"{n}", n) for n in range(size)]))
        for size in (2, 500)
    ]
    assert new[0] == new[1]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_pop_runs_as_many_statements_for_a_thousand_as_for_one(mq: psycopg.Connection, concurrency: int):
    """Messages, partitions of a pop, partitions of the queue, and groups."""
    configure(mq, "q", concurrency=concurrency)
    push_to(mq, [("q", f"{n % 500}", n) for n in range(20_000)])
    ack(mq, pop(mq, "q", batch=1))
    jobs: list[dict[str, Any]] = [{"batch": 1}, {"batch": 1}, {"batch": 1000}, {"batch": 40, "partitions": 2}]
    jobs += [{"batch": 1000, "partitions": 100}]
    counts = [statements(mq, lambda options=options: pop(mq, "q", **options)) for options in jobs]
    discovery = 40  # a pop may run a discovery
    shared = 4 * 100 if concurrency > 1 else 0  # a shared partition leases its runs by statements of its own
    assert max(len(count) for count in counts[:4]) <= discovery
    assert len(counts[4]) <= discovery + shared
    for number in range(10):
        take(mq, "q", f"other {number}", batch=1)
    assert len(statements(mq, lambda: pop(mq, "q", batch=1))) <= discovery


def ack_each(connection: psycopg.Connection, leased: list[Row]) -> None:
    """Acknowledge message by message, in one call."""
    call(
        connection,
        "ack_many",
        leases=[delivery.lease for delivery in leased],
        ids=[delivery.id for delivery in leased],
        statuses=["completed"] * len(leased),
    )


@pytest.mark.parametrize("verb", ["extend", "ack", "release"])
def test_an_ack_runs_as_many_statements_for_a_thousand_as_for_one(mq: psycopg.Connection, verb: str):
    push_to(mq, [("q", f"{n % 10}", n) for n in range(20_000)])
    small, large = pop(mq, "q", "a", batch=1), pop(mq, "q", "b", batch=1000, partitions=5)
    counts = [
        statements(mq, lambda leased=leased: call(mq, f"{verb}_all", leases=[*{message.lease for message in leased}]))
        for leased in (small, large)
    ]
    per_lease = 5 if verb == "release" else 1  # the verdict of each lease that is not simply completed
    assert len(counts[1]) <= per_lease * len(counts[0])


def test_acks_message_by_message_run_as_many_statements_for_a_thousand_as_for_one(mq: psycopg.Connection):
    push_to(mq, [("q", f"{n % 10}", n) for n in range(20_000)])
    small, large = pop(mq, "q", "a", batch=1), pop(mq, "q", "b", batch=1000, partitions=5)
    counts = [statements(mq, lambda leased=leased: ack_each(mq, leased)) for leased in (small, large)]
    assert counts[0] == counts[1]


def test_a_transaction_runs_as_many_statements_for_a_hundred_pushes_as_for_one(mq: psycopg.Connection):
    push_to(mq, [("q", f"{n}", n) for n in range(100)])
    pushes = [{"push": {"queue": "q", "partition": f"{n}", "payload": n}} for n in range(100)]
    few, many = (
        statements(mq, lambda part=part: call(mq, "transaction", operations=Jsonb(part)))
        for part in (pushes[:2], pushes)
    )
    assert few == many
