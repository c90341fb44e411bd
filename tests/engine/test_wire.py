"""The functions that the server calls: several pops in one call, acks by Queen's addresses, and due messages."""

import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.plans import assert_indexed, explained
from tests.engine.test_explain import big, statements  # noqa: F401
from tests.engine.verbs import Row, broken, call, configure, drain, pass_time, pop, push, push_to

Message = dict[str, Any]


def pops(connection: psycopg.Connection, queue: str, *sizes: tuple[int, int], **options: Any) -> list[list[Message]]:
    """Pop one request for each (batch, partitions); return the messages of each, in their order."""
    asked: dict[str, Any] = {
        "queue": queue, "group_name": "g", "batches": [batch for batch, _ in sizes],
        "partitions": [most for _, most in sizes], "names": None, "namespace": None, "task": None,
        "lease_time": None, "auto_ack": False, "subscription_mode": None, "subscription_from": None, "conflate": False,
    }  # fmt: skip
    rows = {row.request: row for row in call(connection, "_queen_pop", **asked | options)}
    requests = range(1, len(sizes) + 1)
    assert set(rows) <= set(requests)
    got = [json.loads(f"[{rows[request].messages}]") if request in rows else [] for request in requests]
    for request, messages in zip(requests, got, strict=True):
        if messages:
            row = rows[request]
            assert {message["leaseId"] for message in messages} == {"" if row.lease is None else str(row.lease)}
            assert row.size == len(messages)
            assert row.partition_count == len({message["partitionId"] for message in messages})
    return got


def acks(connection: psycopg.Connection, *acked: tuple[Message, str], group: str = "g") -> list[Row]:
    """Acknowledge messages; a message without leaseId is acknowledged without a lease."""
    return call(
        connection,
        "_queen_ack",
        partition_ids=[UUID(message["partitionId"]) for message, _ in acked],
        transaction_ids=[message["transactionId"] for message, _ in acked],
        groups=[group] * len(acked),
        leases=[UUID(message["leaseId"]) if message.get("leaseId") else None for message, _ in acked],
        statuses=[status for _, status in acked],
        errors=[None] * len(acked),
    )


def data(messages: list[Message]) -> list[Any]:
    return [message["data"] for message in messages]


def test_each_request_has_partitions_and_a_lease_of_its_own(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 4}", n) for n in range(12)])
    first, second, third = pops(mq, "q", (1, 1), (2, 1), (9, 2))
    assert [len(first), len(second), len(third)] == [1, 2, 6]
    leases = [{message["leaseId"] for message in got} for got in (first, second, third)]
    assert len(set.union(*leases)) == 3
    assert len({message["partition"] for got in (first, second, third) for message in got}) == 4
    assert not broken(mq)


def test_partitions_are_distributed_in_turn(mq: psycopg.Connection):
    """A request for many partitions does not take the first ones of the others."""
    push_to(mq, [("q", f"p{n}", n) for n in range(3)])
    greedy, modest, late = pops(mq, "q", (10, 10), (1, 1), (1, 1))
    assert [len(greedy), len(modest), len(late)] == [1, 1, 1]


def test_the_first_requests_are_served_if_there_is_not_enough_for_all(mq: psycopg.Connection):
    push(mq, "q", 1, 2)
    assert [data(got) for got in pops(mq, "q", (1, 1), (1, 1))] == [[1], []]
    assert pops(mq, "q", (1, 1), (1, 1)) == [[], []]


def test_a_batch_is_the_limit_of_all_partitions_of_a_request(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 3}", n) for n in range(9)])
    ((*got,),) = pops(mq, "q", (4, 3))
    assert len(got) == 4
    assert not broken(mq)
    assert len(drain(mq, "q", "g")) == 3  # the partition that was not needed


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
    mq.execute("UPDATE skep.runs SET ready_at = clock_timestamp()")  # the delay of the retry is over
    (again,) = pops(mq, "q", (100, 1), conflate=True)
    assert data(again) == [3]
    acks(mq, (again[0], "completed"))
    (new,) = pops(mq, "q", (100, 1), conflate=True)
    assert data(new) == [5]
    assert not broken(mq)


def test_a_reused_transaction_id_means_the_leased_message(mq: psycopg.Connection):
    """After the dedup window an id may exist twice."""
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


def test_a_nack_keeps_completed_messages_and_counts_one_attempt(mq: psycopg.Connection):
    configure(mq, "q", retry_limit=1, retry_delay=0)
    push(mq, "q", *range(4))
    for attempt in (1, 2):
        (got,) = pops(mq, "q", (9, 1))
        assert [(message["data"], message["deliveryAttempt"]) for message in got][-1] == (3, attempt)
        acks(mq, (got[0], "completed" if attempt == 1 else "nack"), (got[1], "nack"))
        assert not broken(mq)
    assert [dead_letter.payload for dead_letter in call(mq, "list_dead_letters", queue="q")] == [2, 1]
    (rest,) = pops(mq, "q", (9, 1))
    assert [(message["data"], message["deliveryAttempt"]) for message in rest] == [(3, 1)]


def test_a_seek_makes_acks_stale(mq: psycopg.Connection):
    push(mq, "q", 1)
    (got,) = pops(mq, "q", (1, 1))
    call(mq, "seek", group_name="g", queue="q", position="beginning")
    (verdict,) = acks(mq, (got[0], "completed"))
    assert (verdict.success, verdict.error) == (False, "Invalid or expired lease")


def partitions_of(messages: list[Message]) -> set[str]:
    return {message["partition"] for message in messages}


def test_one_lease_id_covers_all_partitions_of_a_pop(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 3}", n) for n in range(6)])
    ((*got,),) = pops(mq, "q", (9, 3))
    assert len(partitions_of(got)) == 3
    assert [row.success for row in acks(mq, *((message, "completed") for message in got[:3]))] == [True] * 3
    assert [row.success for row in acks(mq, *((message, "completed") for message in got))] == [True] * 6
    assert drain(mq, "q", "g") == []
    assert [row.noop for row in acks(mq, *((message, "completed") for message in got))] == [True] * 6
    assert not broken(mq)


def test_a_lease_id_is_extended_in_all_its_partitions(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n}", n) for n in range(3)])
    ((*got,),) = pops(mq, "q", (9, 3))
    lease = UUID(got[0]["leaseId"])
    ((extended, until),) = call(mq, "_queen_extend", lease=lease, seconds=1000)
    assert extended == 3
    assert mq.execute("SELECT DISTINCT expires_at FROM skep.leases").fetchall() == [(until,)]
    acks(mq, (got[0], "completed"))
    assert call(mq, "_queen_extend", lease=lease, seconds=2000)[0].partition_count == 2
    assert call(mq, "_queen_release", lease=lease) == [(2,)]
    assert call(mq, "_queen_extend", lease=lease, seconds=2000) == [(0, None)]
    assert call(mq, "_queen_release", lease=lease) == [(0,)]
    again = [message for each in pops(mq, "q", (9, 3)) for message in each]
    assert [message["deliveryAttempt"] for message in again] == [1, 1]
    assert not broken(mq)


def test_a_single_lease_is_extended_and_released(mq: psycopg.Connection):
    push(mq, "q", 1)
    (got,) = pops(mq, "q", (1, 1))
    lease = UUID(got[0]["leaseId"])
    assert mq.execute("SELECT lease_id FROM skep.leases").fetchall() == [(lease,)]
    assert call(mq, "_queen_extend", lease=lease, seconds=60)[0].partition_count == 1
    assert call(mq, "_queen_release", lease=lease) == [(1,)]
    assert mq.execute("SELECT count(*) FROM skep.lease_sets").fetchone() == (0,)


def test_a_set_whose_leases_were_taken_over_is_stale(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n}", n) for n in range(2)])
    (stale,) = pops(mq, "q", (9, 2))
    pass_time(mq, 1000)
    (mine,) = pops(mq, "q", (9, 2))
    assert [message["deliveryAttempt"] for message in mine] == [2, 2]
    verdicts = acks(mq, *((message, "completed") for message in stale))
    assert [(row.success, row.error) for row in verdicts] == [(False, "Invalid or expired lease")] * 2
    assert [row.success for row in acks(mq, *((message, "completed") for message in mine))] == [True] * 2


def test_a_lease_is_valid_for_its_own_partition_only(mq: psycopg.Connection):
    """A consumer of one queue cannot end the leases of another by naming one of its own messages."""
    push(mq, "mine", 1)
    push(mq, "theirs", 1)
    (mine,), (theirs,) = pops(mq, "mine", (1, 1)), pops(mq, "theirs", (1, 1))
    for status in ("completed", "failed", "nack", "dlq", "retry"):
        (verdict,) = acks(mq, (mine[0] | {"leaseId": theirs[0]["leaseId"]}, status))
        assert (verdict.success, verdict.error) == (False, "Invalid or expired lease")
    assert mq.execute("SELECT count(*) FROM skep.leases WHERE done = '{}' AND failed = '{}'").fetchone() == (2,)
    assert call(mq, "_queen_lease_queues", lease=UUID(theirs[0]["leaseId"])) == [("theirs",)]
    assert acks(mq, (theirs[0], "completed"))[0].success
    assert call(mq, "_queen_lease_queues", lease=UUID(theirs[0]["leaseId"])) == [("theirs",)]  # ended, still theirs


def test_a_lease_set_of_other_partitions_is_not_valid(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n}", n) for n in range(2)])
    push(mq, "other", 1)
    (several,), (one,) = pops(mq, "q", (9, 2)), pops(mq, "other", (1, 1))
    (verdict,) = acks(mq, (one[0] | {"leaseId": several[0]["leaseId"]}, "completed"))
    assert (verdict.success, verdict.error) == (False, "Invalid or expired lease")
    assert call(mq, "_queen_lease_queues", lease=UUID(several[0]["leaseId"])) == [("q",)]
    assert call(mq, "_queen_lease_queues", lease=uuid4()) == []


def test_a_failure_ends_one_partition_of_a_lease_set(mq: psycopg.Connection):
    configure(mq, "q", retry_delay=0)
    push_to(mq, [("q", f"p{n % 2}", n) for n in range(6)])
    (got,) = pops(mq, "q", (9, 2))
    bad, good = got[0], got[3]
    verdicts = acks(mq, (bad, "failed"), (good, "completed"))
    assert [(row.success, row.released, row.dlq) for row in verdicts] == [(True, True, False), (True, False, False)]
    (again,) = pops(mq, "q", (9, 2))
    assert partitions_of(again) == {bad["partition"]}
    assert [message["deliveryAttempt"] for message in again] == [2] * 3


def test_requests_for_different_partitions_are_served_by_one_call(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n % 3}", n) for n in range(9)])
    names = ["p1", "p2", "nowhere", "p1", "p0"]
    got = pops(mq, "q", *[(2, 1)] * 5, names=names)
    assert [data(each) for each in got] == [[1, 4], [2, 5], [], [], [0, 3]]
    assert len({message["leaseId"] for each in got for message in each}) == 3
    assert [row.success for row in acks(mq, *((m, "completed") for each in got for m in each))] == [True] * 6
    again = pops(mq, "q", *[(9, 1)] * 2, names=["p2", "p2"], auto_ack=True)
    assert [data(each) for each in again] == [[8], []]
    assert not broken(mq)


def test_a_new_group_starts_in_each_partition_it_names(mq: psycopg.Connection):
    push_to(mq, [("q", "p0", "old"), ("q", "p1", "old")])
    pass_time(mq, 10)  # a new group starts a little before its first pop
    options: dict[str, Any] = {"names": ["p0", "p1"], "subscription_mode": "new"}
    assert pops(mq, "q", (9, 1), (9, 1), **options) == [[], []]
    push_to(mq, [("q", "p0", "new"), ("q", "p1", "new")])
    assert [data(each) for each in pops(mq, "q", (9, 1), (9, 1), **options)] == [["new"], ["new"]]


def test_requests_get_the_partition_they_name_if_it_is_shared(mq: psycopg.Connection):
    configure(mq, "q", concurrency=4)
    push_to(mq, [("q", f"p{n % 2}", n) for n in range(12)])
    got = pops(mq, "q", *[(2, 1)] * 4, names=["p1", "p0", "p1", "p0"])
    assert [partitions_of(each) for each in got] == [{"p1"}, {"p0"}, {"p1"}, {"p0"}]
    assert sorted(n for each in got for n in data(each)) == list(range(8))
    assert [row.success for row in acks(mq, *((m, "completed") for each in got for m in each))] == [True] * 8
    assert not broken(mq)


def test_a_request_that_gets_several_runs_of_a_shared_partition(mq: psycopg.Connection):
    configure(mq, "q", concurrency=4)
    push(mq, "q", *range(8))
    ((*got,),) = pops(mq, "q", (6, 3))
    assert data(got) == list(range(len(got)))
    assert len(got) <= 6
    assert [row.success for row in acks(mq, *((message, "completed") for message in got))] == [True] * len(got)
    assert data([m for each in pops(mq, "q", (9, 9)) for m in each]) == list(range(len(got), 8))
    assert not broken(mq)


@pytest.mark.parametrize(
    "options", [{"concurrency": 4}, {"lease_log_seconds": 60}, {"concurrency": 4, "lease_time": 0.001}]
)
def test_auto_ack_requests_where_a_lease_is_needed(mq: psycopg.Connection, options: dict[str, Any]):
    configure(mq, "q", **options)
    push(mq, "q", *range(5))
    assert [data(each) for each in pops(mq, "q", (3, 1), auto_ack=True)] == [[0, 1, 2]]
    assert mq.execute("SELECT count(*) FROM skep.leases").fetchone() == (0,)
    assert data(pops(mq, "q", (9, 1), auto_ack=True)[0]) == [3, 4]
    assert not broken(mq)


def test_lease_sets_are_pruned_when_their_leases_have_ended(mq: psycopg.Connection):
    push_to(mq, [("q", f"p{n}", n) for n in range(4)])
    (done,), (leased,) = pops(mq, "q", (9, 2)), pops(mq, "q", (9, 2))
    acks(mq, *((message, "completed") for message in done))
    call(mq, "_prune_traces")
    assert mq.execute("SELECT count(*) FROM skep.lease_sets").fetchone() == (2,)  # too young
    pass_time(mq, 120)
    call(mq, "_prune_traces")
    assert mq.execute("SELECT id FROM skep.lease_sets").fetchall() == [(UUID(leased[0]["leaseId"]),)]
    assert acks(mq, (done[0], "completed"))[0].noop
    assert acks(mq, (leased[0], "completed"))[0].success
    pass_time(mq, 1000)
    call(mq, "_prune_traces")
    assert mq.execute("SELECT count(*) FROM skep.lease_sets").fetchone() == (0,)


def test_due_times(mq: psycopg.Connection):
    def due(*groups: str) -> list[bool]:
        ((result,),) = mq.execute("SELECT skep._has_work(%s, %s)", [["q"] * len(groups), list(groups)]).fetchall()
        return result

    assert due("g") == [False]  # no queue yet
    push(mq, "q", 1)
    assert due("g", "stranger") == [True, True]
    drain(mq, "q", "g")
    assert due("g", "stranger") == [False, True]
    push(mq, "q", 2)
    assert due("g") == [True]
    (got,) = pops(mq, "q", (1, 1))
    pass_time(mq, 2)
    pop(mq, "q", "g")  # stores what discovery has seen
    assert due("g") == [False]  # leased
    mq.execute("UPDATE skep.runs SET ready_at = clock_timestamp()")  # when the lease ends
    assert due("g") == [True]
    assert data(got) == [2]


@pytest.mark.parametrize("verb", ["pop", "ack", "fail", "due", "push"])
def test_every_query_uses_its_index(big: psycopg.Connection, verb: str):  # noqa: F811
    with big.transaction(force_rollback=True):
        got = [m for each in pops(big, "ns.big", *[(1, 1)] * 20, group_name="fresh") for m in each]
        messages = Jsonb(
            [
                {"queue": "ns.big", "partition": f"partition {n}", "payload": n, "transaction_id": f"w{n}"}
                for n in range(99)
            ]
        )
        job, indexes = {
            "pop": (lambda: pops(big, "ns.big", *[(1, 1)] * 20, group_name="fresh"), {"runs_ready", "messages_pkey"}),
            "ack": (
                lambda: acks(big, *((message, "completed") for message in got), group="fresh"),
                {"messages_pkey", "runs_pkey"},
            ),
            "fail": (
                lambda: acks(big, *((message, "failed") for message in got), group="fresh"),
                {"messages_transaction_id", "messages_pkey", "runs_pkey"},
            ),
            "due": (
                lambda: big.execute("SELECT skep._has_work(%s, %s)", [["ns.big"] * 50, ["fresh", "drained"] * 25]),
                {"runs_ready", "runs_leased", "runs_drained", "journal_pkey", "queues_name_key"},
            ),
            "push": (
                lambda: call(big, "_push_messages", messages=messages),
                {"messages_transaction_id", "partition_floors_pkey"},
            ),
        }[verb]
        assert_indexed(explained(big, job), *indexes)


def test_many_requests_run_as_many_statements_as_one(mq: psycopg.Connection):
    push_to(mq, [("q", f"{n % 1000}", n) for n in range(10_000)])
    pops(mq, "q", (1, 1))
    few, many = (
        min(
            len(statements(mq, lambda n=n: pops(mq, "q", *[(1, 1)] * n))) for _ in range(5)
        )  # one of them without discovery
        for n in (2, 60)
    )
    assert few == many
    little = [message for got in pops(mq, "q", *[(1, 1)] * 2) for message in got]
    lots = [message for got in pops(mq, "q", *[(5, 1)] * 60) for message in got]
    counts = [
        statements(mq, lambda leased=leased: acks(mq, *((message, "completed") for message in leased)))
        for leased in (little, lots)
    ]
    assert len(counts[0]) == len(counts[1])


def test_completed_and_other_leases_in_one_call(mq: psycopg.Connection):
    """Each has its own verdict: a completed lease, an open one, an ended one."""
    push_to(mq, [("q", f"p{n % 3}", n) for n in range(6)])
    whole, half, over = pops(mq, "q", (2, 1), (2, 1), (2, 1))
    acks(mq, *((message, "completed") for message in reversed(over)))  # in any order
    acked = [*whole, half[0], *over]
    verdicts = acks(mq, *((message, "completed") for message in acked))
    assert [(row.success, row.noop, row.released) for row in verdicts] == [
        (True, False, True),
        (True, False, True),
        (True, False, False),
        (True, True, False),
        (True, True, False),
    ]
    assert acks(mq, (half[1], "completed"))[0].released
    assert drain(mq, "q", "g") == []
    assert not broken(mq)


def test_a_stale_ack_beside_a_valid_one(mq: psycopg.Connection):
    """It is judged by the state before the call: a set and a single lease, the stale ack first or last."""
    push_to(mq, [("q", f"p{n % 2}", n) for n in range(4)])
    (several,) = pops(mq, "q", (4, 2))
    push(mq, "one", 1, 2)
    (one,) = pops(mq, "one", (2, 1))
    for got in (several, one):
        stale = [(message | {"leaseId": str(uuid4())}, "completed") for message in got[:1]]
        good = [(message, "completed") for message in got]
        verdicts = acks(mq, *stale, *good, *stale)
        counts = [(row.success, row.noop, row.error) for row in verdicts]
        refused = (False, False, "Invalid or expired lease")
        assert counts == [refused, *[(True, False, None)] * len(good), refused]
        assert all(row.released for row in verdicts[1:-1])
        assert acks(mq, *stale)[0].noop
    assert not broken(mq)


def push_twins(mq: psycopg.Connection) -> None:
    """Push a message without a transaction id, and one whose transaction id is the id of the first."""
    (first,) = push(mq, "q", "first")
    ((text,),) = mq.execute("SELECT skep.message_id(%s, %s)::text", [first.partition_id, first.offset]).fetchall()
    push(mq, "q", "second", transaction_ids=[text])


@pytest.mark.parametrize("has_lease", [True, False])
def test_a_transaction_id_that_is_the_id_of_another_message(mq: psycopg.Connection, *, has_lease: bool):
    """An ack is for the message with the id, however often it is repeated; the other one is delivered again."""
    push_twins(mq)
    (got,) = pops(mq, "q", (10, 1))
    assert got[0]["transactionId"] == got[1]["transactionId"]
    said = got[0] if has_lease else got[0] | {"leaseId": None}
    assert [acks(mq, (said, "completed"))[0].success for _ in range(2)] == [True, True]
    pass_time(mq, 3600)
    (again,) = pops(mq, "q", (10, 1))
    assert data(again) == ["second"]
    assert acks(mq, (said, "completed"))[0].noop  # it is still for the first message
    push(mq, "q", "third")
    assert [answer.success for answer in acks(mq, (again[0], "completed"))] == [True]
    assert [row.payload for row in drain(mq, "q")] == ["third"]
    assert broken(mq) == {}


@pytest.mark.parametrize("function", ["_queen_ack", "_queen_ack_lease"])
@pytest.mark.parametrize("covered", [1, 2])
def test_a_lease_of_two_messages_with_one_text(mq: psycopg.Connection, function: str, covered: int):
    """It is completed by two acks, and not by one."""
    push_twins(mq)
    (got,) = pops(mq, "q", (10, 1))
    if function == "_queen_ack":
        acks(mq, *[(message, "completed") for message in got[:covered]])
    else:
        call(
            mq, function, partition_id=UUID(got[0]["partitionId"]), lease=UUID(got[0]["leaseId"]),
            transaction_ids=[message["transactionId"] for message in got[:covered]],
        )  # fmt: skip
    pass_time(mq, 3600)
    assert ("second" in [row.payload for row in drain(mq, "q")]) == (covered == 1)


def test_a_message_with_a_transaction_id_is_not_acknowledged_by_its_id(mq: psycopg.Connection):
    push(mq, "q", "named", transaction_ids=["t"])
    (got,) = pops(mq, "q", (10, 1))
    (answer,) = acks(mq, (got[0] | {"transactionId": got[0]["id"]}, "completed"))
    assert (answer.success, answer.error) == (False, "Message not found")
