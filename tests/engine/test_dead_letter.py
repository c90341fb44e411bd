"""Dead letters are full copies, and stay when their message, queue or group is deleted."""

import uuid
from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.acks import ack_one, as_batch, dead_letters, one_by_one, runs
from tests.engine.verbs import ack, call, configure, pass_time, pop, push

Q = "orders"
LEASE_SECONDS = 300
TRACE = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
FULL = {
    "transaction_ids": ["order 7"],
    "headers": [Jsonb({"content-type": "text"})],
    "trace_ids": [TRACE],
    "producers": ["shop"],
}


def by_dlq(connection: psycopg.Connection) -> tuple[str, int]:
    message = pop(connection, Q, "workers")[0]
    call(connection, "dead_letter", lease=message.lease, error="hopeless", id=message.id)
    return "hopeless", 1


def by_failures(connection: psycopg.Connection) -> tuple[str, int]:
    for error in ("once", "twice"):
        call(connection, "fail", lease=pop(connection, Q, "workers", batch=1)[0].lease, error=error)
    return "twice", 2


def by_partial_failure(connection: psycopg.Connection) -> tuple[str, int]:
    message = pop(connection, Q, "workers")[0]
    call(connection, "fail", lease=message.lease, error="this one only", id=message.id)
    call(connection, "ack", lease=message.lease)
    return "this one only", 1


def by_expiry(connection: psycopg.Connection) -> tuple[str, int]:
    for _ in range(2):
        pop(connection, Q, "workers", batch=1)
        pass_time(connection, LEASE_SECONDS + 1)
    pop(connection, Q, "workers")
    return "lease expired", 2


@pytest.mark.parametrize("die", [by_dlq, by_failures, by_partial_failure, by_expiry])
def test_a_full_copy(mq: psycopg.Connection, die: Callable[[psycopg.Connection], tuple[str, int]]):
    """A dead letter has everything of the message, its group, the reason and the number of attempts.

    Scenarios c1, 46.
    """
    configure(mq, Q, retry_limit=1, retry_delay=0)
    push(mq, Q, {"total": [1, None, "x"]}, partition="partition", **FULL)
    push(mq, Q, "next", partition="partition")
    error, attempts = die(mq)

    (copy,) = dead_letters(mq, Q)
    assert (copy.group_name, copy.queue, copy.partition) == ("workers", Q, "partition")
    assert (copy.payload, copy.headers) == ({"total": [1, None, "x"]}, {"content-type": "text"})
    assert (copy.transaction_id, copy.trace_id, copy.producer) == ("order 7", TRACE, "shop")
    assert (copy.error, copy.attempts) == (error, attempts)
    address = 'SELECT partition_id, "offset", created_at FROM skep.messages WHERE "offset" = 0'
    assert mq.execute(address).fetchall() == [(copy.partition_id, copy.offset, copy.created_at)]


@pytest.mark.parametrize("delete", [
    "SELECT skep.delete_queue('orders')",
    "SELECT skep.delete_partition('orders', 'Default')",
    "SELECT skep.delete_group('g')",
    'SELECT skep.delete_message(skep.message_id(partition_id, "offset")) FROM skep.messages',
    "SELECT skep.seek('g', 'orders', 'beginning')",
])  # fmt: skip
def test_dead_letters_outlive_their_source(mq: psycopg.Connection, delete: LiteralString):
    """The copies stay, whatever is deleted (scenario C1)."""
    push(mq, Q, *range(3))
    as_batch(mq, pop(mq, Q), "dcd")
    before = dead_letters(mq, Q)
    mq.execute(delete)
    assert dead_letters(mq, Q) == before
    assert [row.payload for row in before] == [0, 2]


def test_each_error_is_kept_with_its_message(mq: psycopg.Connection):
    push(mq, Q, *range(4))
    batch = pop(mq, Q)
    one_by_one(mq, batch[:3], "fcf")
    call(mq, "fail", lease=batch[3].lease, error="the last one")
    assert [(row.offset, row.error) for row in dead_letters(mq, Q)] == [
        (0, "error 0"), (2, "error 2"), (3, "the last one"),
    ]  # fmt: skip


def test_the_last_error_counts(mq: psycopg.Connection):
    """The reason is the last error: not one of an earlier delivery, and not one that was replaced later."""
    configure(mq, Q, retry_limit=1, retry_delay=0)
    push(mq, Q, 0)
    call(mq, "fail", lease=pop(mq, Q)[0].lease, error="first time")
    call(mq, "fail", lease=pop(mq, Q)[0].lease, error="second time")
    assert [row.error for row in dead_letters(mq, Q)] == ["second time"]


def test_a_dead_letter_without_a_reason(mq: psycopg.Connection):
    configure(mq, Q, retry_limit=0)
    push(mq, Q, 0)
    message = pop(mq, Q)[0]
    call(mq, "ack_many", leases=[message.lease], ids=[message.id], statuses=["failed"])
    assert [row.error for row in dead_letters(mq, Q)] == ["failed"]


def test_a_message_is_dead_lettered_at_once(mq: psycopg.Connection):
    """dead_letter does not wait for the rest of the batch, is not undone by a release, and happens once.

    Scenario c1.
    """
    push(mq, Q, *range(3))
    batch = pop(mq, Q)
    ack_one(mq, batch[1], "d")
    assert [row.offset for row in dead_letters(mq, Q)] == [1]
    ack_one(mq, batch[1], "d")
    call(mq, "release", lease=batch[0].lease)
    assert runs(mq, Q) == [([0, 2], 1)]
    assert [row.offset for row in dead_letters(mq, Q)] == [1]


def test_a_dead_letter_that_is_rolled_back(mq: psycopg.Connection):
    """The copy belongs to the transaction that made it (scenario C12)."""
    push(mq, Q, 0)
    message = pop(mq, Q)[0]
    with mq.transaction(force_rollback=True):
        ack_one(mq, message, "d")
    assert dead_letters(mq, Q) == []
    ack_one(mq, message, "c")


def test_a_thousand_dead_letters_at_the_head_do_not_starve_the_group(mq: psycopg.Connection):
    """A dead-lettered message counts as done, so the partition continues (scenarios C1, 98)."""
    configure(mq, Q, retry_limit=0)
    push(mq, Q, *range(1_010))
    call(mq, "fail", lease=pop(mq, Q, batch=1_000)[0].lease, error="bad")
    assert len(dead_letters(mq, Q)) == 1_000
    assert runs(mq, Q) == [(list(range(1_000, 1_010)), 1)]


def test_each_group_has_its_own_dead_letters(mq: psycopg.Connection):
    push(mq, Q, *range(2))
    as_batch(mq, pop(mq, Q, "a"), "dc")
    as_batch(mq, pop(mq, Q, "b"), "cd")
    ack(mq, pop(mq, Q, "c"))
    assert [(row.group_name, row.offset) for row in dead_letters(mq, Q)] == [("a", 0), ("b", 1)]
