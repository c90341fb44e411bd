"""A reader that lost track looks at every lane once, and wakes only those that have something."""

import psycopg

from tests.engine.verbs import broken, drain, pop, push, push_to, take

IDLE = 300


def in_line(connection: psycopg.Connection) -> int:
    ((count,),) = connection.execute("SELECT count(*) FROM skep.cursors WHERE ready_at IS NOT NULL").fetchall()
    return count


def test_after_a_restart_drained_lanes_stay_out_of_line(mq: psycopg.Connection):
    """L7: another server start, and so another full look, does not put idle lanes back in line."""
    push_to(mq, [("q", f"idle {n}", n) for n in range(IDLE)])
    drain(mq, "q", partitions=IDLE, batch=IDLE)
    assert (pop(mq, "q"), in_line(mq)) == ([], 0)
    mq.execute("UPDATE skep.looks SET server_started = 'epoch'")
    push(mq, "q", "new", partition="busy")
    push(mq, "q", "again", partition="idle 7")
    assert {message.partition for message in pop(mq, "q", partitions=10)} == {"busy", "idle 7"}
    assert in_line(mq) == 2
    assert broken(mq) == {}


def test_a_pruned_journal_hides_nothing(mq: psycopg.Connection):
    """Section 2: a reader older than the journal falls back once to partition_lookup."""
    push(mq, "q", 0, partition="a")
    assert take(mq, "q") == [0]
    assert pop(mq, "q") == []
    push(mq, "q", 1, partition="a")
    push(mq, "q", 2, partition="b")
    mq.execute("SELECT skep.prune_journal('0')")
    assert mq.execute("SELECT count(*) FROM skep.journal").fetchall() == [(0,)]
    assert sorted(take(mq, "q", partitions=10)) == [1, 2]
    assert pop(mq, "q") == []
