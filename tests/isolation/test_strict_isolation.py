"""Calls in transactions under REPEATABLE READ and SERIALIZABLE, which do not see later changes of others."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.verbs import Row, broken, call, configure, drain, pop, push, refused, take

Connect = Callable[..., psycopg.Connection]


@pytest.fixture(params=["REPEATABLE_READ", "SERIALIZABLE"])
def strict(connect: Connect, request: pytest.FixtureRequest) -> Callable[[], psycopg.Connection]:
    """Begin a transaction that sees the database as it is now."""

    def begin() -> psycopg.Connection:
        connection = connect(autocommit=False)
        connection.isolation_level = psycopg.IsolationLevel[request.param]
        connection.execute("SELECT count(*) FROM skep.queues")
        return connection

    return begin


def complete(mq: psycopg.Connection, payload: int) -> None:
    """Push a message that every group has completed and retention has deleted."""
    push(mq, "q", payload)
    assert take(mq, "q") == [payload]
    call(mq, "retain")


@pytest.mark.parametrize("delete", ["retain", "clear_queue"])
def test_a_push_after_messages_that_were_pushed_and_deleted(connect: Connect, strict, delete: str):
    """The offset that it sees as free is below the floor by now: no group would ever get the message."""
    mq = connect()
    configure(mq, "q", completed_retention_seconds=0)
    complete(mq, 1)
    old = strict()
    if delete == "retain":
        complete(mq, 2)
    else:
        push(mq, "q", 2)
        call(mq, "clear_queue", queue="q")
    with refused("40001", "cannot see"):
        push(old, "q", 3)
    old.rollback()
    push(old, "q", 3)
    old.commit()
    push(mq, "q", 4)
    assert ([row.payload for row in drain(mq, "q")], broken(mq)) == ([3, 4], {})


def test_a_push_while_the_messages_are_being_deleted(connect: Connect, strict):
    """It does not wait for retention, which has locked the floor, and may need the partition."""
    mq, upkeep = connect(), connect()
    configure(mq, "q", max_size=1)
    push(mq, "q", 1, 2)
    old = strict()
    with upkeep.transaction(), refused("40001", "cannot see"):
        call(upkeep, "retain")
        old.execute("SET LOCAL statement_timeout = '900ms'")
        push(old, "q", 3)
    old.rollback()
    assert (push(old, "q", 3)[0].offset, old.commit(), broken(mq)) == (2, None, {})


def leased_since(mq: psycopg.Connection, begin: Callable[[], psycopg.Connection]) -> tuple[psycopg.Connection, Row]:
    """Begin a transaction, and then give the group its first lease of a partition."""
    push(mq, "n.q", 1, partition="a")
    take(mq, None, namespace="n")
    push(mq, "n.q", 2, partition="b")
    old = begin()
    (delivery,) = pop(mq, None, namespace="n")
    return old, delivery


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("delete_group", {"group_name": "g"}),
        ("seek", {"group_name": "g", "queue": "n.q", "position": "end"}),
        ("configure_queue", {"queue": "n.q", "options": Jsonb({"priority": 5})}),
        ("configure_queue", {"queue": "n.q", "options": Jsonb({"concurrency": 2})}),
    ],
)
def test_calls_that_must_see_every_run(connect: Connect, strict, function: str, arguments: dict):
    """A run created since would stay behind: without its group, below a seek, or where no pop finds it."""
    mq = connect()
    old, delivery = leased_since(mq, strict)
    with refused("SK001", "READ COMMITTED"):
        call(old, function, **arguments)
    old.rollback()
    call(mq, "release", lease=delivery.lease)
    assert (take(mq, None, namespace="n"), broken(mq)) == ([2], {})


def test_a_cancelled_group_that_subscribes_again(connect: Connect, strict):
    mq = connect()
    old, delivery = leased_since(mq, strict)
    old.rollback()
    call(mq, "cancel", group_name="g")
    old.execute("SELECT count(*) FROM skep.queues")
    with refused("SK001", "subscribe", "READ COMMITTED"):
        call(old, "subscribe", group_name="g", namespace="n")
    with refused("SK003"):
        call(mq, "ack", lease=delivery.lease)


def test_options_of_a_queue_that_is_new(connect: Connect, strict):
    """No group can have read from it."""
    mq, old = connect(), strict()
    configure(old, "q", priority=5, concurrency=3)
    old.commit()
    old.execute("SELECT count(*) FROM skep.queues")
    configure(old, "q", priority=5, retry_limit=7)
    old.commit()
    query = "SELECT priority, concurrency, retry_limit FROM skep.queues"
    assert mq.execute(query).fetchall() == [(5, 3, 7)]


def test_a_push_that_repeats_a_delayed_message(connect: Connect, strict):
    """The delayed message was pushed after the snapshot: it is found by its unique key."""
    mq = connect()
    push(mq, "q", 0)
    old = strict()
    call(mq, "push", queue="q", payload=Jsonb(1), partition="Default", transaction_id="t", delay=3600)
    with refused("40001", "cannot see"):
        push(old, "q", 1, 2, transaction_ids=["t", "u"])
    old.rollback()
    assert [row.status for row in push(old, "q", 1, 2, 3, transaction_ids=["t", "u", "u"])] == [
        "duplicate", "queued", "duplicate",
    ]  # fmt: skip
    old.commit()
    assert [row.payload for row in drain(mq, "q")] == [0, 2]
    assert len(call(mq, "list_delayed")) == 1
    assert broken(mq) == {}
