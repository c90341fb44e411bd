"""Pushes that commit in any order, against readers that look in between: nothing is lost."""

import pytest

from tests.isolation.programs import begin, commit, insert, push, rollback, run, take
from tests.isolation.steps import Stage, Story, every_order


def met(story: Story) -> None:
    """Lane x exists, and the group has drained it."""
    session = next(iter(story.sessions.values()))
    for step in (push("first", "x"), take(), take()):
        step.do(session)


def nothing(story: Story) -> None:
    """Neither the queue nor the group exists."""


@pytest.mark.parametrize("lanes", [("x", "x"), ("x", "y")], ids=["one_lane", "two_lanes"])
def test_whoever_begins_first_may_commit_last(stage: Stage, lanes: tuple[str, str]):
    """L1, 92: the classical loss: a reader passes over a transaction that is still open."""
    a, b = ([begin + push(name, lane), commit] for name, lane in zip("ab", lanes, strict=True))
    every_order(stage, met, A=a, B=b, C=[take(), take()])


@pytest.mark.parametrize("lanes", [("x", "x"), ("x", "y")], ids=["one_lane", "two_lanes"])
def test_two_pushes_create_the_queue(stage: Stage, lanes: tuple[str, str]):
    """L4: queue and lanes are created once, and the group that is born meanwhile misses nothing."""
    a, b = ([begin + push(name, lane), commit] for name, lane in zip("ab", lanes, strict=True))
    every_order(stage, A=a, B=b, C=[take()])


@pytest.mark.parametrize("prepare", [met, nothing])
def test_a_push_that_rolls_back_leaves_no_gap(stage: Stage, prepare):
    """L3: whoever waited for it takes its offsets, and creates the lane it had created."""
    every_order(
        stage, prepare, A=[begin + push("a", "x", "y"), rollback], B=[begin + push("b", "y", "x"), commit], C=[take()]
    )


@pytest.mark.parametrize("prepare", [met, nothing])
def test_the_outbox_beside_a_push(stage: Stage, prepare):
    """L2: the outbox takes the lane's lock at commit only; neither waits for the other's thinking."""
    outbox = [begin + insert("a", "x"), insert("b", "y", "x"), commit]
    every_order(stage, prepare, A=outbox, B=[begin + push("c", "x"), commit], C=[take(partitions=2)])


def test_two_outboxes_in_opposite_order(stage: Stage):
    """L2, L4: lanes are locked in one order at commit, in whatever order they were written."""
    a = [begin + insert("a", "x"), insert("b", "y"), commit]
    b = [begin + insert("c", "y"), insert("d", "x"), commit]
    every_order(stage, A=a, B=b)


def test_one_transaction_pops_and_pushes_to_the_same_queue(stage: Stage):
    """C12: what a transaction pushes after its own look is news to the next look, whatever has committed meanwhile."""
    a = [begin + run("xid", "SELECT pg_current_xact_id()"), take(), push("a", "x", "y"), commit]
    every_order(stage, more_to_come, A=a, B=[push("b", queue="other")], C=[take()])


def test_the_outbox_and_a_pop_in_one_transaction(stage: Stage):
    """C12: the outbox moves at commit, so always after the look of its own transaction."""
    a = [begin + insert("a", "x", "y"), take(), commit]
    every_order(stage, more_to_come, A=a, B=[push("b", queue="other")], C=[take()])


def more_to_come(story: Story) -> None:
    """The group has drained its lane, and there is one message more: the next look has something to remember."""
    met(story)
    push("second", "x").do(story.sessions["A"])


@pytest.mark.parametrize("open_transaction", [True, False])
def test_pruning_the_journal(stage: Stage, *, open_transaction: bool):
    """A reader whose news are pruned away looks at every lane instead: before, during and after the pruning."""
    prune = run("prune", "SELECT skep.prune_journal('0 s')")
    r = [begin + prune, commit] if open_transaction else [prune]
    every_order(stage, met, A=[begin + push("a", "x"), commit], R=r, C=[take(), take()])
