"""What the server calls: several pops in one call, answers by Queen's addresses, and what is due for those who wait."""

import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import assert_indexed, explained
from tests.engine.test_explain import big, statements  # noqa: F401
from tests.engine.verbs import Row, broken, call, configure, drain, pop, push, push_to

Message = dict[str, Any]


def pops(connection: psycopg.Connection, queue: str, *sizes: tuple[int, int], **options: Any) -> list[list[Message]]:
    """One request for each (batch, partitions); what each got, in their order."""
    tokens = [uuid4() for _ in sizes]
    asked: dict[str, Any] = {
        "queue": queue, "group_name": "g", "tokens": tokens, "batches": [batch for batch, _ in sizes],
        "partitions": [lanes for _, lanes in sizes], "partition": None, "namespace": None, "task": None,
        "lease_time": None, "auto_ack": False, "subscription_mode": None, "subscription_from": None, "conflate": False,
    }  # fmt: skip
    rows = {row.lease: row for row in call(connection, "wire_pop", **asked | options)}
    assert set(rows) <= set(tokens)
    return [json.loads(f"[{rows[token].messages}]") if token in rows else [] for token in tokens]


def acks(connection: psycopg.Connection, *said: tuple[Message, str], group: str = "g") -> list[Row]:
    """Answer for messages; a message without leaseId is answered without a lease."""
    return call(
        connection,
        "wire_ack",
        partition_ids=[UUID(message["partitionId"]) for message, _ in said],
        transaction_ids=[message["transactionId"] for message, _ in said],
        groups=[group] * len(said),
        leases=[UUID(message["leaseId"]) if message.get("leaseId") else None for message, _ in said],
        statuses=[status for _, status in said],
        errors=[None] * len(said),
    )


def data(messages: list[Message]) -> list[Any]:
    return [message["data"] for message in messages]


def test_each_request_has_lanes_and_a_lease_of_its_own(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 4}", n) for n in range(12)])
    first, second, third = pops(mq, "q", (1, 1), (2, 1), (9, 2))
    assert [len(first), len(second), len(third)] == [1, 2, 6]
    leases = [{message["leaseId"] for message in got} for got in (first, second, third)]
    assert len(set.union(*leases)) == 3
    assert len({message["partition"] for got in (first, second, third) for message in got}) == 4
    assert not broken(mq)


def test_lanes_are_dealt_in_turn(mq: psycopg.Connection):
    """Whoever wants many lanes does not take the first ones of the others."""
    push_to(mq, [("q", f"p{n}", n) for n in range(3)])
    greedy, modest, late = pops(mq, "q", (10, 10), (1, 1), (1, 1))
    assert [len(greedy), len(modest), len(late)] == [1, 1, 1]


def test_with_less_than_all_want_the_first_are_served(mq: psycopg.Connection):
    push(mq, "q", 1, 2)
    assert [data(got) for got in pops(mq, "q", (1, 1), (1, 1))] == [[1], []]
    assert pops(mq, "q", (1, 1), (1, 1)) == [[], []]


def test_a_batch_is_the_limit_of_all_lanes_of_a_request(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 3}", n) for n in range(9)])
    ((*got,),) = pops(mq, "q", (4, 3))
    assert len(got) == 4
    assert not broken(mq)
    assert len(drain(mq, "q", "g")) == 3  # the lane that was not needed


def test_auto_ack_of_many(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 4}", n) for n in range(8)])
    got = pops(mq, "q", (1, 1), (1, 1), auto_ack=True) + pops(mq, "q", (9, 9), auto_ack=True)
    assert sorted(n for each in got for n in data(each)) == list(range(8))
    assert {message["leaseId"] for each in got for message in each} == {""}
    assert not broken(mq)


def test_deleted_messages_are_not_delivered(mq: psycopg.Connection):
    stored = push(mq, "q", *range(6))
    for row in stored[:2] + stored[3:4]:
        mq.execute("SELECT skep.delete_message(skep.message_id(%s, %s))", [row.partition_id, row.offset])
    (got,) = pops(mq, "q", (9, 1))
    assert data(got) == [2, 4, 5]
    assert [row.success for row in acks(mq, *((message, "completed") for message in got))] == [True] * 3
    assert not broken(mq)


def test_conflation_leases_the_run_and_delivers_its_last(mq: psycopg.Connection):
    stored = push(mq, "q", *range(5))
    mq.execute("SELECT skep.delete_message(skep.message_id(%s, %s))", [stored[-1].partition_id, stored[-1].offset])
    (got,) = pops(mq, "q", (100, 1), conflate=True)
    assert data(got) == [3]
    (verdict,) = acks(mq, (got[0], "failed"))
    assert (verdict.success, verdict.dlq) == (True, False)
    push(mq, "q", 5)
    mq.execute("UPDATE skep.leases SET retry_at = clock_timestamp()")
    mq.execute("UPDATE skep.cursors SET ready_at = clock_timestamp()")
    (again,) = pops(mq, "q", (100, 1), conflate=True)
    assert data(again) == [3]
    acks(mq, (again[0], "completed"))
    (new,) = pops(mq, "q", (100, 1), conflate=True)
    assert data(new) == [5]
    assert not broken(mq)


def test_a_transaction_id_that_is_used_again_means_the_leased_message(mq: psycopg.Connection):
    """Beyond the dedup window an id may be there twice."""
    configure(mq, "q", dedup_window=0.001)
    push(mq, "q", "old", transaction_ids=["t"])
    mq.execute("SELECT pg_sleep(0.01)")
    push(mq, "q", "new", transaction_ids=["t"])
    (first,) = pops(mq, "q", (1, 1))
    assert data(first) == ["old"]
    assert acks(mq, (first[0], "completed"))[0].noop is False
    (second,) = pops(mq, "q", (1, 1))
    assert data(second) == ["new"]
    assert acks(mq, (second[0] | {"leaseId": None}, "completed"))[0].success
    assert pops(mq, "q", (1, 1)) == [[]]


def test_a_nack_keeps_what_is_done_and_charges_once(mq: psycopg.Connection):
    configure(mq, "q", retry_limit=1, retry_delay=0)
    push(mq, "q", *range(4))
    for attempt in (1, 2):
        (got,) = pops(mq, "q", (9, 1))
        assert [(message["data"], message["deliveryAttempt"]) for message in got][-1] == (3, attempt)
        acks(mq, (got[0], "completed" if attempt == 1 else "nack"), (got[1], "nack"))
        assert not broken(mq)
    assert [letter.payload for letter in call(mq, "list_dead_letters", queue="q")] == [2, 1]
    (rest,) = pops(mq, "q", (9, 1))
    assert [(message["data"], message["deliveryAttempt"]) for message in rest] == [(3, 1)]


def test_a_seek_makes_answers_stale(mq: psycopg.Connection):
    push(mq, "q", 1)
    (got,) = pops(mq, "q", (1, 1))
    call(mq, "seek", group_name="g", queue="q", position="beginning")
    (verdict,) = acks(mq, (got[0], "completed"))
    assert (verdict.success, verdict.error) == (False, "Invalid or expired lease")


def test_what_is_due(mq: psycopg.Connection):
    def due(*groups: str) -> list[bool]:
        ((answer,),) = mq.execute("SELECT skep.due(%s, %s)", [["q"] * len(groups), list(groups)]).fetchall()
        return answer

    assert due("g") == [False]  # no queue yet
    push(mq, "q", 1)
    assert due("g", "stranger") == [True, True]
    drain(mq, "q", "g")
    pop(mq, "q", "g")
    assert due("g", "stranger") == [False, True]
    push(mq, "q", 2)
    assert due("g") == [True]
    (got,) = pops(mq, "q", (1, 1))
    pop(mq, "q", "g")
    assert due("g") == [False]  # leased
    mq.execute("UPDATE skep.cursors SET ready_at = clock_timestamp()")  # what the end of the lease would be
    assert due("g") == [True]
    assert data(got) == [2]


@pytest.mark.parametrize("verb", ["pop", "ack", "due", "push"])
def test_everything_goes_by_its_index(big: psycopg.Connection, verb: str):  # noqa: F811
    with big.transaction(force_rollback=True):
        got = [m for each in pops(big, "ns.big", *[(1, 1)] * 20, group_name="fresh") for m in each]
        messages = Jsonb(
            [{"queue": "ns.big", "partition": f"lane {n}", "payload": n, "transaction_id": f"w{n}"} for n in range(99)]
        )
        job, indexes = {
            "pop": (lambda: pops(big, "ns.big", *[(1, 1)] * 20, group_name="fresh"), {"leases_token", "messages_pkey"}),
            "ack": (
                lambda: acks(big, *((message, "completed") for message in got), group="fresh"),
                {"messages_transaction_id", "leases_token", "cursors_pkey"},
            ),
            "due": (
                lambda: big.execute("SELECT skep.due(%s, %s)", [["ns.big"] * 50, ["fresh", "drained"] * 25]),
                {"cursors_ready", "journal_pkey", "queues_name_key"},
            ),
            "push": (
                lambda: call(big, "wire_push", messages=messages),
                {"messages_transaction_id", "partition_lookup_pkey"},
            ),
        }[verb]
        assert_indexed(explained(big, job), *indexes)


def test_many_requests_run_as_many_statements_as_one(mq: psycopg.Connection):
    push_to(mq, [("q", f"{n % 300}", n) for n in range(3000)])
    pops(mq, "q", (1, 1))
    one, many = (statements(mq, lambda n=n: pops(mq, "q", *[(1, 1)] * n)) for n in (1, 60))
    assert len(one) == len(many)
    (few,) = pops(mq, "q", (1, 1))
    lots = [message for got in pops(mq, "q", *[(5, 1)] * 60) for message in got]
    counts = [
        statements(mq, lambda held=held: acks(mq, *((message, "completed") for message in held)))
        for held in (few, lots)
    ]
    assert len(counts[0]) == len(counts[1])
