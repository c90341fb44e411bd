"""Dead letters that are redriven for one group, while the partition that they need comes and goes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.engine.crowd import until
from tests.engine.verbs import broken, call, configure, pop, push, take
from tests.isolation.programs import begin, commit, run
from tests.isolation.steps import BLOCKED, Session, Stage, Step, Story, every_order

Connect = Callable[..., psycopg.Connection]
READER, OTHER = "reader", "other"


def bury(mq: psycopg.Connection, queue: str, payload: str) -> None:
    """Push a message that the reader sends to the dead letters, and that the other group completes."""
    push(mq, queue, payload)
    (delivery,) = pop(mq, queue, READER, partition="Default")
    call(mq, "dead_letter", lease=delivery.lease, error="no")
    assert take(mq, queue, OTHER) == [payload]


def idle_again(story: Story) -> None:
    """The reader has had redriven dead letters: their partition is empty and idle. It has another dead letter."""
    mq, queue = story.observer, story.queue
    configure(mq, queue, completed_retention_seconds=0, drop_idle_seconds=0.000001)
    for group in (READER, OTHER):
        call(mq, "subscribe", group_name=group, queue=queue, mode="all")
    bury(mq, queue, "first")
    call(mq, "redrive", queue=queue)
    assert take(mq, queue, READER) == ["first"]
    bury(mq, queue, "second")
    call(mq, "retain")


def redrive() -> Step:
    """Redrive as a client does, which tries again if a partition was deleted meanwhile."""

    def do(session: Session) -> None:
        for _ in range(3):
            try:
                rows = call(session.connection, "redrive", queue=session.queue)
                break
            except psycopg.errors.SerializationFailure:
                assert session.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        session.happened("redriven", len(rows))

    return Step("redrive", do)


def check(story: Story) -> None:
    """The reader gets it, and nobody else."""
    assert story.of_kind("redriven") == [1]
    assert (take(story.observer, story.queue, OTHER), take(story.observer, story.queue, READER)) == ([], ["second"])
    assert broken(story.observer) == {}


def test_the_partition_is_dropped_meanwhile(stage: Stage):
    drop = run("dropped", "SELECT skep.drop_idle_partitions()", bounded=True)
    every_order(stage, idle_again, check, A=[redrive()], B=[begin + drop, commit])


def test_one_of_two_partitions_is_deleted_meanwhile(connect: Connect):
    """To create one while the other is locked could deadlock: the call fails, and can be tried again."""
    mq, upkeep, observer = connect(), connect(), connect()
    for partition in "ab":
        push(mq, "q", partition, partition=partition)
        call(mq, "dead_letter", lease=pop(mq, "q")[0].lease, error="no")
    call(mq, "redrive", queue="q")
    for delivery in pop(mq, "q", partitions=2):
        call(mq, "dead_letter", lease=delivery.lease, error="no")
    upkeep.execute("BEGIN")
    call(upkeep, "delete_partition", queue="q", partition="b (redriven for g)")
    with ThreadPoolExecutor(1) as threads:
        redriven = threads.submit(call, mq, "redrive", queue="q")
        until(lambda: observer.execute(BLOCKED, [mq.info.backend_pid]).fetchall() == [(True,)], "it to wait")
        upkeep.execute("COMMIT")
        with pytest.raises(psycopg.errors.SerializationFailure, match="deleted during redrive"):
            redriven.result()
    assert (len(call(mq, "redrive", queue="q")), broken(mq)) == (2, {})


def test_dead_letters_that_were_redriven_go_to_a_queue(connect: Connect):
    """As new messages for every group, in the partition that they came from, not the one that is for their group."""
    mq = connect()
    for group in (READER, OTHER):
        call(mq, "subscribe", group_name=group, queue="q", mode="all")
    bury(mq, "q", "first")
    call(mq, "redrive", queue="q")
    call(mq, "dead_letter", lease=pop(mq, "q", READER)[0].lease, error="no")
    (row,) = call(mq, "redrive", queue="q", to_queue="q")
    assert row.from_partition == "Default (redriven for reader)"
    assert [take(mq, "q", group) for group in (READER, OTHER)] == [["first"], ["first"]]
    assert [row.partition for row in call(mq, "peek", queue="q", first_offset=1)] == ["Default"]
