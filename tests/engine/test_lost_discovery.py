"""A group that lost its discovery state checks every partition once, and lists only those with messages."""

import psycopg

from tests.engine.verbs import broken, drain, pop, push, push_to, take

IDLE = 300


def in_list(connection: psycopg.Connection) -> int:
    ((count,),) = connection.execute("SELECT count(*) FROM skep.runs WHERE ready_at IS NOT NULL").fetchall()
    return count


def test_after_a_restart_drained_partitions_stay_out_of_the_ready_list(mq: psycopg.Connection):
    """A new server start runs a discovery of all partitions, which does not put idle ones into the ready list."""
    push_to(mq, [("q", f"idle {n}", n) for n in range(IDLE)])
    drain(mq, "q", partitions=IDLE, batch=IDLE)
    assert (pop(mq, "q"), in_list(mq)) == ([], 0)
    mq.execute("UPDATE skep.discoveries SET server_started = 'epoch'")
    push(mq, "q", "new", partition="busy")
    push(mq, "q", "again", partition="idle 7")
    assert {message.partition for message in pop(mq, "q", partitions=10)} == {"busy", "idle 7"}
    assert in_list(mq) == 2
    assert broken(mq) == {}


def test_a_pruned_journal_hides_nothing(mq: psycopg.Connection):
    """A group whose snapshot is older than the journal checks all partitions once."""
    push(mq, "q", 0, partition="a")
    assert take(mq, "q") == [0]
    assert pop(mq, "q") == []
    push(mq, "q", 1, partition="a")
    push(mq, "q", 2, partition="b")
    mq.execute("SELECT skep.prune_journal('0')")
    assert mq.execute("SELECT count(*) FROM skep.journal").fetchall() == [(0,)]
    assert sorted(delivery.payload for delivery in drain(mq, "q", partitions=10)) == [1, 2]
    assert pop(mq, "q") == []
