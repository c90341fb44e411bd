"""Retention, detection and redrive use their indexes, with and without statistics, and cost what they change."""

from collections.abc import Callable, Generator
from typing import Any

import psycopg
import pytest

from tests.engine.plans import FREEZE, assert_indexed, explained, scans
from tests.engine.verbs import ack, call, configure, drain, pass_time, pop, push, push_to

PARTITIONS, MESSAGES, QUEUES, DEAD_LETTERS = 1_000, 20_000, 3_000, 5_000
PARTITION = {"partitions_pkey", "partition_floors_pkey", "queues_pkey"}
GROUP = {"subscriptions_queue", "subscriptions_scope", "runs_pkey"}  # and one row of group_queues


def page_after(connection: psycopg.Connection, partition: int) -> list:
    return call(connection, "_partitions_to_retain", after=partition, max_partitions=10)


def load(connection: psycopg.Connection) -> None:
    """A queue of many partitions that two groups have read, dead letters, and many other queues, groups and leases."""
    connection.execute(FREEZE)
    configure(connection, "big", completed_retention_seconds=0)
    for _ in range(2):
        push_to(connection, [("big", f"partition {n % PARTITIONS}", n) for n in range(MESSAGES // 2)])
    for group in ("a", "b"):
        drain(connection, "big", group, batch=100_000, partitions=10_000)
    push_to(connection, [(f"ns.small{n}", "p", n) for n in range(QUEUES)])
    connection.execute("SELECT skep._mark_archived(id, 0) FROM skep.partitions")
    pop(connection, None, "wide", namespace="ns", batch=QUEUES, partitions=QUEUES)  # a group and a lease on each
    connection.execute(
        "SELECT skep.subscribe('group ' || n, 'ns.small' || n) FROM generate_series(0, %s - 1) n", [QUEUES]
    )
    push(connection, "letters", *range(DEAD_LETTERS))
    configure(connection, "letters", retry_limit=0)
    for group in ("a", "b"):
        call(
            connection,
            "fail",
            lease=pop(connection, "letters", group, batch=DEAD_LETTERS)[0].lease,
            error=f"of {group}",
        )
    push_to(connection, [("big", f"partition {n}", n) for n in range(10)])


@pytest.fixture(scope="module", params=["never_analyzed", "analyzed"])
def big(module_database_url: str, request: pytest.FixtureRequest) -> Generator[psycopg.Connection]:
    """The loaded queue, in a session of its own that makes a new plan for each parameter."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if not connection.execute("SELECT count(*) FROM skep.queues").fetchall()[0][0]:
            load(connection)
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        if request.param == "analyzed":
            connection.execute("ANALYZE")
        yield connection


def some_partitions(connection: psycopg.Connection, number: int) -> list[int]:
    query = "SELECT min(id) FROM skep.partitions WHERE name = 'partition 0'"
    ((first,),) = connection.execute(query).fetchall()
    return call(connection, "_partitions_to_retain", after=first - 1, max_partitions=number)[0][0]


@pytest.mark.parametrize("partitions", [1, 200])
@pytest.mark.parametrize("function", ["_group_cursors", "_retainable"])
def test_pending_groups(big: psycopg.Connection, function: str, partitions: int):
    ids = some_partitions(big, partitions)
    for _ in range(2):  # also after the functions have cached their plans
        plans = explained(big, lambda: call(big, function, partition_ids=ids))
    assert_indexed(plans, *PARTITION, *GROUP)
    if function == "_group_cursors":
        assert "messages" not in {table for table, _ in scans(plans)}


RULES: list[dict[str, Any]] = [
    {"completed_retention_seconds": 0},
    {"completed_retention_seconds": None, "max_size": 5},
    {"completed_retention_seconds": None, "retention_seconds": 60},
]


@pytest.mark.parametrize("rule", RULES, ids=["completed", "max_size", "retention"])
@pytest.mark.parametrize("behind", [False, True], ids=["done", "overtaken"])
def test_deleting(big: psycopg.Connection, rule: dict[str, Any], *, behind: bool):
    """Messages that every group has completed, and messages that a group misses."""
    with big.transaction(force_rollback=True):
        configure(big, "big", **rule)
        if behind:
            call(big, "seek", group_name="b", queue="big", position="beginning")
        if "retention_seconds" in rule:
            pass_time(big, 100)
        ids = some_partitions(big, 50)
        found: list = []
        plans = explained(big, lambda: found.extend(call(big, "retain", partition_ids=ids, max_messages=150)))
        assert len(found) == (0 if behind and rule == RULES[0] else 50)
        assert_indexed(plans, *PARTITION, *GROUP, *({"messages_pkey"} if found else set()))


def test_a_page_of_partitions(big: psycopg.Connection):
    """Of queues that have a retention rule; retention first checks whether there is one at all."""
    pages: list = []
    plans = explained(big, lambda: pages.extend(page_after(big, 100)), analyze=True)
    assert pages[0][0] == list(range(101, 111))
    assert {index for _, index in scans(plans)} == {"partitions_pkey", "queues_pkey", None}
    assert sum(plan.rows_touched() for plan in plans) < 100
    with big.transaction(force_rollback=True):
        configure(big, "big", completed_retention_seconds=None)
        plans = explained(big, lambda: pages.extend(page_after(big, 0)), analyze=True)
        assert pages[1][0] == []
        assert sum(plan.rows_touched() for plan in plans) < QUEUES + 100


def test_detecting_the_dead(big: psycopg.Connection):
    """Detection reads all subscriptions; of the partitions, only those that the suspects have read."""
    with big.transaction(force_rollback=True):
        pass_time(big, 350)
        found: list = []
        plans = explained(big, lambda: found.extend(call(big, "detect_dead_groups")))
        assert {row.group_name for row in found} >= {"a", "b", "group 7"}
        walked = {table for table, index in scans(plans) if index is None}
        assert walked <= {"subscriptions", "settings"}, walked


@pytest.mark.parametrize("suspects", [1, 100])
def test_a_suspect_costs_its_own_partitions(big: psycopg.Connection, suspects: int):
    """However many other partitions, cursors and queues there are."""
    with big.transaction(force_rollback=True):
        quiet = [f"group {n}" for n in range(suspects)]
        query = "UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '350 s' WHERE group_name = ANY (%s)"
        big.execute(query, [quiet])
        plans = explained(big, lambda: call(big, "detect_dead_groups"), analyze=True)
        assert sum(plan.rows_touched() for plan in plans) < 10_000 + 50 * suspects  # reads all subscriptions


LETTER_CALLS: list[tuple[str, dict[str, Any]]] = [
    (verb, scope)
    for verb in ("redrive", "purge_dead_letters", "list_dead_letters")
    for scope in ({}, {"queue": "letters", "group_name": "b"}, {"ids": [1, 2, 3]})
    if verb != "list_dead_letters" or "ids" not in scope
]


@pytest.mark.parametrize(("verb", "scope"), LETTER_CALLS, ids=str)
def test_dead_letters(big: psycopg.Connection, verb: str, scope: dict[str, Any]):
    with big.transaction(force_rollback=True):
        plans = explained(big, lambda: call(big, verb, **scope, max_rows=10))
        used = {index for _, index in scans(plans)}
        assert used & {"dead_letters_pkey", "dead_letters_queue_group"}, used
        assert_indexed(plans)


def cost(connection: psycopg.Connection, job: Callable[[], object]) -> int:
    job()
    return sum(plan.rows_touched() for plan in explained(connection, job, analyze=True))


@pytest.mark.parametrize("option", ["completed_retention_seconds", "retention_seconds", "max_size"])
def test_a_retention_pass_costs_nothing_for_kept_messages(mq: psycopg.Connection, option: str):
    """100 and 20,000 uncompleted or young messages: a visit reads the ends of a partition only."""
    configure(mq, "q", **{option: 100_000})
    call(mq, "subscribe", group_name="behind", queue="q")
    costs = []
    for messages in (100, 20_000):
        push(mq, "q", *range(messages))
        drain(mq, "q", "ahead", batch=10_000)
        costs.append(cost(mq, lambda: call(mq, "retain")))
    assert costs[1] <= costs[0] + 20  # a time is found by binary search


def test_a_retention_pass_costs_what_it_deletes(mq: psycopg.Connection):
    """Ten messages of a partition that keeps 20, and of one that keeps 20,000."""
    configure(mq, "q", completed_retention_seconds=0)
    costs = []
    for messages in (20, 20_000):
        push(mq, "q", *range(messages))
        drain(mq, "q", "ahead", batch=10_000)
        ack(mq, pop(mq, "q", "behind", batch=20))
        plans = explained(mq, lambda: call(mq, "retain", max_messages=10), analyze=True)
        costs.append(sum(plan.rows_touched() for plan in plans))
    assert costs[1] <= costs[0] + 20
