"""Pushes and answers that commit or fail as one."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.answers import progress, runs
from tests.engine.crowd import until
from tests.engine.verbs import Row, call, configure, lag, pass_time, pop, push, refused

IN, OUT = "incoming", "outgoing"
LEASE_SECONDS = 300


def ack_of(message: Row, **more: Any) -> dict[str, Any]:
    return {"ack": {"lease": str(message.lease), "id": str(message.id), **more}}


def push_of(payload: Any, **more: Any) -> dict[str, Any]:
    return {"push": {"queue": OUT, "payload": payload, **more}}


def transact(connection: psycopg.Connection, *operations: dict[str, Any]) -> list[Row]:
    return call(connection, "transaction", operations=Jsonb(operations))


def payloads(connection: psycopg.Connection, queue: str) -> list[Any]:
    return [message.payload for message in pop(connection, queue, "reader")]


def test_push_and_ack_together(mq: psycopg.Connection):
    """C12: any mix of pushes and answers."""
    configure(mq, IN, retry_delay=0)
    push(mq, IN, *range(3))
    batch = pop(mq, IN)
    rows = transact(
        mq,
        push_of("a", partition="p", headers={"h": 1}, transaction_id="t"),
        ack_of(batch[0]),
        ack_of(batch[1], status="failed", error="bad"),
        push_of("b"),
        ack_of(batch[2], status="dead_letter", error="worse"),
    )
    assert [(row.transaction["ord"], row.transaction["status"], row.transaction["offset"]) for row in rows] == [
        (1, "queued", 0), (2, "queued", 0),
    ]  # fmt: skip
    assert lag(mq, queue=IN) == {"Default": 0}
    assert sorted(payloads(mq, OUT) + payloads(mq, OUT)) == ["a", "b"]


def test_an_ack_for_the_whole_lease(mq: psycopg.Connection):
    """C12: no message named: all of the lease."""
    push(mq, IN, *range(3))
    transact(mq, {"ack": {"lease": str(pop(mq, IN)[0].lease)}}, push_of(1))
    assert lag(mq, queue=IN) == {"Default": 0}
    assert payloads(mq, OUT) == [1]


def stale_lease(connection: psycopg.Connection, batch: list[Row]) -> dict[str, Any]:
    pass_time(connection, LEASE_SECONDS + 1)
    return ack_of(batch[0])


def unknown_status(_: psycopg.Connection, batch: list[Row]) -> dict[str, Any]:
    return ack_of(batch[0], status="fine")


def bad_push(*_: Any) -> dict[str, Any]:
    return push_of(1, headers=[])


def unknown_operation(*_: Any) -> dict[str, Any]:
    return {"pull": {}}


@pytest.mark.parametrize(("bad", "sqlstate"), [
    (stale_lease, "SK003"), (unknown_status, "SK001"), (bad_push, "SK001"), (unknown_operation, "SK001"),
])  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_operation_fails_them_all(
    mq: psycopg.Connection, bad: Callable[..., dict[str, Any]], sqlstate: str, place: int
):
    """C12: nothing is pushed, nothing is answered."""
    push(mq, IN, *range(2), partition="a")
    push(mq, IN, *range(2), partition="b")
    batch, other = pop(mq, IN, batch=2), pop(mq, IN, batch=2, lease_time=10 * LEASE_SECONDS)
    operations = [push_of("never"), ack_of(other[0])]
    operations.insert(place, bad(mq, batch))
    before = progress(mq)
    with refused(sqlstate):
        transact(mq, *operations)
    assert progress(mq) == before
    assert payloads(mq, OUT) == []


def kill(victim: psycopg.Connection, killer: psycopg.Connection) -> None:
    """End the session of another connection, and wait until it is gone."""
    pid = victim.info.backend_pid
    killer.execute("SELECT pg_terminate_backend(%s)", [pid])
    gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
    until(lambda: (killer.execute(gone, [pid]).fetchone() or [False])[0], "the session to end")
    victim.close()


# Where the connection dies: after so many of the statements of its transaction.
STATEMENTS: list[Callable[[psycopg.Connection, list[Row]], object]] = [
    lambda connection, batch: transact(connection, ack_of(batch[0]), push_of("one")),
    lambda connection, batch: call(connection, "ack", lease=batch[1].lease, id=batch[1].id),
    lambda connection, _: push(connection, OUT, "two"),
    lambda connection, _: connection.execute(
        "INSERT INTO skep.outbox (queue, payload) VALUES (%s, %s)", [OUT, Jsonb("three")]
    ),
    lambda connection, batch: call(connection, "fail", lease=batch[2].lease, error="bad", id=batch[2].id),
]


@pytest.mark.parametrize("statements", range(len(STATEMENTS) + 1))
def test_a_connection_dies_before_commit(connect: Callable[..., psycopg.Connection], statements: int):
    """C12: whatever was done in the transaction, it is as if it had not been."""
    watcher, victim = connect(), connect(autocommit=False)
    push(watcher, IN, *range(3))
    batch = pop(watcher, IN)
    before = progress(watcher)
    for statement in STATEMENTS[:statements]:
        statement(victim, batch)
    kill(victim, watcher)
    assert progress(watcher) == before
    assert payloads(watcher, OUT) == []
    call(watcher, "ack", lease=batch[0].lease)
    assert lag(watcher, queue=IN) == {"Default": 0}


def test_a_connection_dies_after_commit(connect: Callable[..., psycopg.Connection]):
    """C12: all of it is there."""
    watcher, victim = connect(), connect(autocommit=False)
    push(watcher, IN, *range(3))
    batch = pop(watcher, IN)
    for statement in STATEMENTS:
        statement(victim, batch)
    victim.commit()
    kill(victim, watcher)
    assert lag(watcher, queue=IN) == {"Default": 0}
    assert payloads(watcher, OUT) == ["one", "two", "three"]
    assert runs(watcher, IN) == []


def test_a_connection_dies_with_a_pop_it_has_not_committed(connect: Callable[..., psycopg.Connection]):
    """C12: a pop that was rolled back leaves no lease and charges nothing."""
    watcher, victim = connect(), connect(autocommit=False)
    push(watcher, IN, *range(3))
    assert len(pop(victim, IN)) == 3
    kill(victim, watcher)
    assert runs(watcher, IN) == [([0, 1, 2], 1)]


def test_rolled_back_to_a_savepoint(connect: Callable[..., psycopg.Connection]):
    """C12: a part of a transaction can be taken back; the rest stands."""
    connection = connect(autocommit=False)
    push(connection, IN, *range(2))
    batch = pop(connection, IN)
    with connection.transaction(force_rollback=True):
        transact(connection, ack_of(batch[0]), push_of("undone"))
    transact(connection, ack_of(batch[1]), push_of("done"))
    connection.commit()
    assert payloads(connection, OUT) == ["done"]
    call(connection, "release", lease=batch[0].lease)
    assert runs(connection, IN) == [([0], 1)]
