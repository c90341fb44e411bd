"""Pushes that commit in any order, while groups pop in between: nothing is lost."""

import pytest

from tests.isolation.programs import begin, commit, insert, push, rollback, run, take
from tests.isolation.steps import Stage, Story, every_order


def drained(story: Story) -> None:
    """Partition x exists, and the group has drained it."""
    session = next(iter(story.sessions.values()))
    for step in (push("first", "x"), take(), take()):
        step.do(session)


def nothing(story: Story) -> None:
    """Neither the queue nor the group exists."""


@pytest.mark.parametrize("partitions", [("x", "x"), ("x", "y")], ids=["one_partition", "two_partitions"])
def test_the_first_push_to_begin_may_commit_last(stage: Stage, partitions: tuple[str, str]):
    """A group must not skip a transaction that is still open when a later one commits (scenarios L1, 92)."""
    a, b = ([begin + push(name, partition), commit] for name, partition in zip("ab", partitions, strict=True))
    every_order(stage, drained, A=a, B=b, C=[take(), take()])


@pytest.mark.parametrize("partitions", [("x", "x"), ("x", "y")], ids=["one_partition", "two_partitions"])
def test_two_pushes_create_the_queue(stage: Stage, partitions: tuple[str, str]):
    """Queue and partitions are created once, and a group that subscribes meanwhile misses nothing (scenario L4)."""
    a, b = ([begin + push(name, partition), commit] for name, partition in zip("ab", partitions, strict=True))
    every_order(stage, A=a, B=b, C=[take()])


@pytest.mark.parametrize("prepare", [drained, nothing])
def test_a_push_that_rolls_back_leaves_no_gap(stage: Stage, prepare):
    """The push that waited for it takes its offsets, and creates the partition (scenario L3)."""
    every_order(
        stage, prepare, A=[begin + push("a", "x", "y"), rollback], B=[begin + push("b", "y", "x"), commit], C=[take()]
    )


@pytest.mark.parametrize("prepare", [drained, nothing])
def test_the_outbox_beside_a_push(stage: Stage, prepare):
    """The outbox locks the partition at commit only.

    Neither waits while the other transaction is open (scenario L2).
    """
    outbox = [begin + insert("a", "x"), insert("b", "y", "x"), commit]
    every_order(stage, prepare, A=outbox, B=[begin + push("c", "x"), commit], C=[take(partitions=2)])


def test_two_outboxes_in_opposite_order(stage: Stage):
    """Partitions are locked in one order at commit, in whatever order rows were inserted (scenarios L2, L4)."""
    a = [begin + insert("a", "x"), insert("b", "y"), commit]
    b = [begin + insert("c", "y"), insert("d", "x"), commit]
    every_order(stage, A=a, B=b)


def test_one_transaction_pops_and_pushes_to_the_same_queue(stage: Stage):
    """The next discovery finds messages that a transaction pushed after its own discovery (scenario C12)."""
    a = [begin + run("xid", "SELECT pg_current_xact_id()"), take(), push("a", "x", "y"), commit]
    every_order(stage, more_to_come, A=a, B=[push("b", queue="other")], C=[take()])


def test_the_outbox_and_a_pop_in_one_transaction(stage: Stage):
    """The outbox moves at commit, so always after the discovery of its own transaction (scenario C12)."""
    a = [begin + insert("a", "x", "y"), take(), commit]
    every_order(stage, more_to_come, A=a, B=[push("b", queue="other")], C=[take()])


def more_to_come(story: Story) -> None:
    """The group has drained its partition, and there is one message more: the next discovery has something to store."""
    drained(story)
    push("second", "x").do(story.sessions["A"])


@pytest.mark.parametrize("open_transaction", [True, False])
def test_pruning_the_journal(stage: Stage, *, open_transaction: bool):
    """A group whose journal rows are pruned checks every partition instead: before, during and after the pruning."""
    prune = run("prune", "SELECT skep.prune_journal('0 s')")
    r = [begin + prune, commit] if open_transaction else [prune]
    every_order(stage, drained, A=[begin + push("a", "x"), commit], R=r, C=[take(), take()])
