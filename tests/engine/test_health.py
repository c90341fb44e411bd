"""Reports about groups: the fan-out of messages, and how many messages each group has processed."""

import random
import time
from datetime import timedelta

import psycopg
import pytest

from tests.engine.verbs import ack, broken, call, configure, drain, pass_time, pop, push

GROUPS, MESSAGES = 64, 1_000


def status(connection: psycopg.Connection, queue: str = "q", **options: object) -> list[tuple[int, int, list[str]]]:
    rows = call(connection, "message_status", queue=queue, partition="Default", **options)
    return [(row.required_consumer_groups, row.completed_consumer_groups, row.pending_groups) for row in rows]


def states(connection: psycopg.Connection, offset: int, partition: int = 1) -> dict[str, str]:
    id_ = connection.execute("SELECT skep.message_id(%s, %s)", [partition, offset]).fetchall()[0][0]
    return {row.group_name: row.state for row in call(connection, "message_groups", id=id_)}


def buffers(connection: psycopg.Connection, max_rows: int) -> int:
    query = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM skep.message_status('q', 'Default', 0, %s)"
    ((plan,),) = connection.execute(query, [max_rows]).fetchall()
    return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


def test_the_fan_out_of_many_messages_reads_the_groups_once(mq: psycopg.Connection):
    push(mq, "q", *range(MESSAGES))
    for number in range(GROUPS):
        call(mq, "subscribe", group_name=f"g{number:02}", queue="q", mode="all")
        ack(mq, pop(mq, "q", f"g{number:02}", batch=number + 1))
    began = time.perf_counter()
    found = status(mq, max_rows=MESSAGES)
    seconds = time.perf_counter() - began
    assert [completed for _, completed, _ in found] == [max(GROUPS - n, 0) for n in range(MESSAGES)]
    assert {required for required, _, _ in found} == {GROUPS}
    assert found[10][2] == [f"g{number:02}" for number in range(10)]
    assert seconds < 1.0, "2.5 s when each message asked every group"
    few, many = buffers(mq, 10), buffers(mq, MESSAGES)
    assert many - few < MESSAGES, "a message costs its own row, not its groups"


@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_state_of_a_message_for_each_group(mq: psycopg.Connection, concurrency: int):
    configure(mq, "q", concurrency=concurrency, retry_delay=60)
    push(mq, "q", *range(10))
    for group in ("done", "half", "idle", "gone"):
        call(mq, "subscribe", group_name=group, queue="q", mode="all")
    drain(mq, "q", "done")
    leased = pop(mq, "q", "half", batch=4)
    call(mq, "ack", lease=leased[1].lease, id=leased[1].id)
    call(mq, "cancel", group_name="gone", queue="q")
    rest = {"done": "completed", "idle": "pending", "gone": "released"}
    expected = ["leased", "completed", "leased", "leased", "pending"]
    assert [states(mq, n) for n in range(5)] == [{**rest, "half": state} for state in expected]
    call(mq, "release", lease=leased[0].lease)
    pass_time(mq, 1)
    expected = ["waiting", "completed", "waiting", "waiting", "pending"]
    assert [states(mq, n)["half"] for n in range(5)] == expected
    assert status(mq, max_rows=2) == [(3, 1, ["half", "idle"]), (3, 2, ["idle"])]


def test_the_status_of_one_message_equals_that_of_many(mq: psycopg.Connection):
    """After random work of many groups: leases, retries, failures and dead letters."""
    chance = random.Random(7)
    configure(mq, "q", concurrency=3, retry_delay=0, retry_limit=1, partial_failure="retry")
    push(mq, "q", *range(60))
    groups = [f"g{n}" for n in range(6)]
    for group in groups:
        call(mq, "subscribe", group_name=group, queue="q", mode="all", backfill=chance.random() < 0.7)
    for _ in range(120):
        found = pop(mq, "q", chance.choice(groups), batch=chance.randint(1, 6))
        for message in found:
            status_of_ack = chance.choice(["completed", "completed", "failed", "dead_letter", None])
            if status_of_ack:
                call(mq, "ack_many", leases=[message.lease], ids=[message.id], statuses=[status_of_ack])
    push(mq, "q", *range(5))
    for offset, row in enumerate(status(mq)):
        id_ = mq.execute("SELECT skep.message_id(1, %s)", [offset]).fetchall()[0][0]
        one = call(mq, "_fanout", id=id_)[0]
        assert row == (one.required_consumer_groups, one.completed_consumer_groups, one.pending_groups)
        for group in call(mq, "message_groups", id=id_):
            assert group.completed == (group.state == "completed")
            assert (group.group_name in row[2]) == (group.required and not group.completed)
    assert broken(mq) == {}


def processed(connection: psycopg.Connection, group: str = "g") -> tuple[int, int, int]:
    (row,) = call(connection, "group_status", group_name=group)
    return row.processed, row.lag, row.missed


def test_processed_counts_the_messages_that_the_group_completed(mq: psycopg.Connection):
    """It counts neither messages that retention deleted before nor messages completed by force."""
    configure(mq, "q", max_size=4)
    push(mq, "q", *range(10))
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    ack(mq, pop(mq, "q", batch=2))
    assert processed(mq) == (2, 8, 0)
    call(mq, "retain")
    assert processed(mq) == (2, 4, 4)
    assert call(mq, "force_complete", group_name="g", queue="q", older_than=timedelta())[0][0] == 4
    assert processed(mq) == (2, 0, 4)
    push(mq, "q", 10)
    assert [delivery.payload for delivery in drain(mq, "q")] == [10]
    assert (processed(mq), broken(mq)) == ((3, 0, 4), {})


def test_force_complete_leaves_leases_alone(mq: psycopg.Connection):
    """It completes up to the lease of a partition, and everything of partitions that were never read."""
    push(mq, "q", *range(6), partition="read")
    push(mq, "q", *range(3), partition="unread")
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    ack(mq, pop(mq, "q", batch=2, partition="read"))
    leased = pop(mq, "q", batch=2, partition="read")
    assert call(mq, "force_complete", group_name="g", queue="q", older_than=timedelta())[0][0] == 3
    assert processed(mq) == (2, 4, 0)
    ack(mq, leased)
    assert [delivery.payload for delivery in drain(mq, "q")] == [4, 5]
    assert (processed(mq), broken(mq)) == ((6, 0, 0), {})


def test_force_complete_goes_past_the_leases_of_a_shared_partition(mq: psycopg.Connection):
    """It completes messages between leases and behind them, and those that were returned."""
    configure(mq, "q", concurrency=3)
    push(mq, "q", *range(10))
    first, returned, second = (pop(mq, "q", batch=2) for _ in range(3))
    call(mq, "release", lease=returned[0].lease)
    assert call(mq, "force_complete", group_name="g", queue="q", older_than=timedelta())[0][0] == 6
    push(mq, "q", 10)
    assert [delivery.payload for delivery in drain(mq, "q")] == [10]
    call(mq, "release", lease=first[0].lease)
    assert [delivery.payload for delivery in drain(mq, "q")] == [0, 1]
    ack(mq, second)
    assert (processed(mq), broken(mq)) == ((5, 0, 0), {})


def test_a_live_lease_counts_as_a_heartbeat(mq: psycopg.Connection):
    push(mq, "q", 1)
    call(mq, "subscribe", group_name="g", queue="q", mode="all")
    pop(mq, "q", lease_time=3600)
    mq.execute("UPDATE skep.subscriptions SET last_heartbeat_at = now() - interval '1 hour'")
    (row,) = call(mq, "group_status", group_name="g")
    ((now,),) = mq.execute("SELECT clock_timestamp()").fetchall()
    assert (now - row.last_heartbeat_at < timedelta(minutes=1), row.missed_heartbeats) == (True, 0)
    mq.execute("UPDATE skep.runs SET expires_at = now() - interval '1 minute'")
    (row,) = call(mq, "group_status", group_name="g")
    assert (now - row.last_heartbeat_at > timedelta(minutes=50), row.missed_heartbeats) == (True, 60)


def test_a_group_that_reads_some_partitions_is_counted_there_only(mq: psycopg.Connection):
    for partition in "abc":
        push(mq, "q", 1, 2, partition=partition)
    call(mq, "subscribe", group_name="g", queue="q", partition="b", mode="all")
    (row,) = call(mq, "group_status", group_name="g")
    assert (row.partitions, row.lag) == (1, 2)
    assert [(row.partition, row.lag) for row in call(mq, "lag", group_name="g")] == [("b", 2)]
