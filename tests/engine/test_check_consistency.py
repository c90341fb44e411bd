"""check_consistency() counts 0 after ordinary work, and counts each kind of damage under the invariant that it
breaks."""

from typing import LiteralString

import psycopg
import pytest

from tests.engine.verbs import ack, broken, call, configure, drain, pop, push, push_to

OPEN = "end_offset IS NULL"
DAMAGES: dict[str, list[LiteralString]] = {
    "partition_lookup matches the messages": [
        "UPDATE skep.partition_floors SET first_offset = 1 WHERE partition_id = 1"
    ],
    "offsets are dense": ['DELETE FROM skep.messages WHERE partition_id = 1 AND "offset" = 1'],
    "created_at never decreases": [
        "UPDATE skep.messages SET created_at = 'epoch' WHERE partition_id = 1 AND \"offset\" = 2"
    ],
    "messages and floors belong to a partition": [
        "INSERT INTO skep.partition_floors VALUES (99)",
        "INSERT INTO skep.messages (partition_id, \"offset\", created_at, payload) VALUES (99, 0, now(), '1')",
    ],
    "a group has one open run where it started, and runs nowhere else": [
        "DELETE FROM skep.starts WHERE partition_id = 1",
        f"DELETE FROM skep.runs WHERE partition_id = 1 AND {OPEN}",
        "INSERT INTO skep.starts VALUES (1, 99, 0)",
        "INSERT INTO skep.runs (partition_id, group_queue_id, list_id, first_offset) VALUES (2, 2, 2, 0)",
    ],
    "runs are disjoint, and the open one is the last": [
        f"UPDATE skep.runs SET first_offset = 1, cuts = NULL, attempts = NULL WHERE partition_id = 3 AND {OPEN}",
        "UPDATE skep.runs SET end_offset = 3 WHERE partition_id = 3 AND first_offset = 0",
    ],
    "no run reaches beyond the head": [f"UPDATE skep.runs SET first_offset = 50 WHERE partition_id = 1 AND {OPEN}"],
    "no group has processed a negative number of messages": [
        "UPDATE skep.starts SET skipped = 99 WHERE partition_id = 1",
        "UPDATE skep.starts SET skipped = -1 WHERE partition_id = 1",
    ],
    "runs are in the ready list of their group": [
        "UPDATE skep.runs SET list_id = 99 WHERE partition_id = 1",
        "UPDATE skep.runs SET priority = 7 WHERE partition_id = 1",
        "UPDATE skep.queues SET priority = 7 WHERE name = 'ns.q'",
    ],
    "open runs count the leases of their partition": [
        f"UPDATE skep.runs SET leases = 7 WHERE partition_id = 3 AND {OPEN}"
    ],
    "a lease is whole, and its id is the key of its run": [
        "UPDATE skep.runs SET lease_id = gen_random_uuid() WHERE partition_id = 2",
        "UPDATE skep.runs SET leased_to = end_offset + 1 WHERE partition_id = 3 AND lease_id IS NOT NULL",
    ],
    "acks and retries lie inside their run": [
        "UPDATE skep.runs SET failed = '{[0,50)}' WHERE partition_id = 2",
        "UPDATE skep.runs SET cuts = '{0}', attempts = '{2}' WHERE partition_id = 1",
        "UPDATE skep.runs SET done = int8multirange(int8range(first_offset, first_offset + 1)) WHERE partition_id = 1",
        "UPDATE skep.runs SET errors = '{}' WHERE partition_id = 1",
    ],
    "a run with messages is in a list, or will be discovered": [
        f"UPDATE skep.runs SET ready_at = NULL, drained = false WHERE partition_id = 1 AND {OPEN}",
        "UPDATE skep.runs SET ready_at = NULL WHERE partition_id = 2",
        "UPDATE skep.runs SET ready_at = NULL WHERE partition_id = 3 AND end_offset IS NOT NULL",
    ],
    "a partition with messages for a group has a run, or will be discovered": [
        "WITH gone AS (DELETE FROM skep.starts WHERE partition_id = 1) DELETE FROM skep.runs WHERE partition_id = 1",
    ],
    "a ready list belongs to its group": ["UPDATE skep.group_queues SET list_id = 1 WHERE group_name = 'wide'"],
    "discoveries belong to a ready list": ["UPDATE skep.discoveries SET list_id = 99"],
    "delayed messages belong to a partition of their queue": [
        "UPDATE skep.delayed_messages SET partition_id = 99",
        "UPDATE skep.delayed_messages SET queue_id = 99",
    ],
    "the next tick of a schedule is after its last": ["UPDATE skep.schedules SET last_at = next_at"],
}


@pytest.fixture
def busy(mq: psycopg.Connection) -> psycopg.Connection:
    """Partition 1 has work, 2 is leased, 3 is shared with leases; group "wide" reads a namespace."""
    push(mq, "q", *range(4), partition="a")
    push(mq, "q", *range(4), partition="b")
    configure(mq, "shared", concurrency=3, retry_delay=0)
    push(mq, "shared", *range(9))
    push(mq, "ns.q", 1, 2)
    ack(mq, pop(mq, "q", batch=1, partition="a"))
    pop(mq, "q", batch=2, partition="b")
    pop(mq, "shared", batch=2)
    call(mq, "fail", lease=pop(mq, "shared", batch=2)[0].lease, error="no")
    pop(mq, "shared", batch=2)
    pop(mq, None, "wide", namespace="ns", batch=1)
    pop(mq, "q", batch=1, lease_time=600)  # with a discovery, so that nothing is left to discover
    mq.execute("SELECT skep.push('q', '1', 'a', delay => 3600)")
    mq.execute("SELECT skep.create_schedule('hourly', '@hourly', 'q', '1')")
    return mq


def test_ordinary_work_breaks_nothing(busy: psycopg.Connection):
    assert broken(busy) == {}
    assert {row.invariant for row in call(busy, "check_consistency")} == set(DAMAGES)


@pytest.mark.parametrize(("invariant", "damage"), [(name, one) for name, all_ in DAMAGES.items() for one in all_])
def test_every_damage_is_counted(busy: psycopg.Connection, invariant: str, damage: LiteralString):
    if "discovered" in invariant or "retries" in invariant:
        call(
            busy,
            "release",
            lease=busy.execute("SELECT lease_id FROM skep.runs WHERE partition_id = 1").fetchall()[0][0],
        )
    assert broken(busy) == {}
    assert busy.execute(damage).rowcount > 0
    assert broken(busy)[invariant] > 0


def test_work_that_discovery_has_not_found_yet_is_consistent(mq: psycopg.Connection):
    """A push after the last discovery, a partition that was locked, an unfinished scan, a lost journal."""
    push_to(mq, [("q", "a", 1), ("q", "b", 1)])
    drain(mq, "q")
    assert pop(mq, "q") == []
    mq.execute("UPDATE skep.runs SET ready_at = NULL")  # as discovery does sooner or later
    push(mq, "q", 2, partition="a")
    push(mq, "q", 2, partition="c")
    assert broken(mq) == {}
    lost = "a run with messages is in a list, or will be discovered"
    unknown = "a partition with messages for a group has a run, or will be discovered"
    mq.execute("UPDATE skep.discoveries SET snapshot = pg_current_snapshot()")
    assert broken(mq) == {lost: 1, unknown: 1}
    for explanation in (
        "left_over = '{1,3}'",
        "scan_after = ''",
        "server_started = 'epoch'",
        "snapshot = '3:3:'",
    ):
        with mq.transaction(force_rollback=True):
            if "snapshot" in explanation:
                mq.execute("UPDATE skep.journal_floor SET xid = '4'")
            mq.execute(f"UPDATE skep.discoveries SET {explanation}".encode())
            assert broken(mq) == {}, explanation
    mq.execute("DELETE FROM skep.discoveries")
    assert broken(mq) == {}
    assert sorted(delivery.payload for delivery in drain(mq, "q")) == [2, 2]
