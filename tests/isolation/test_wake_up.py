"""The lost wake-up: a partition is found drained while a push fills it."""

import pytest

from tests.engine.verbs import configure
from tests.isolation.programs import ack, begin, commit, pop, push, rollback, run, take
from tests.isolation.steps import Stage, Story, every_order


def one_leased(story: Story) -> None:
    """A holds the only message of the partition."""
    configure(story.observer, story.queue, retry_delay=0)
    push("first", "x").do(story.sessions["A"])
    pop().do(story.sessions["A"])


def shared_partition(story: Story) -> None:
    """The same on a partition that two consumers may share; C has popped in vain."""
    configure(story.observer, story.queue, concurrency=2)
    one_leased(story)
    take().do(story.sessions["C"])


def test_ack_and_discovery_and_push(stage: Stage):
    """The push also creates another partition, so that the discovery in between stores what it has seen."""
    every_order(stage, one_leased, A=[begin + ack, commit], B=[begin + push("b", "x", "y"), commit], C=[take(), take()])


def test_ack_that_rolls_back_and_discovery_and_push(stage: Stage):
    """The partition is leased again when the ack is rolled back; messages pushed meanwhile wait behind it."""
    every_order(stage, one_leased, A=[begin + ack, rollback], B=[begin + push("b", "x", "y"), commit], C=[take()])


def test_ack_and_discovery_and_push_on_a_shared_partition(stage: Stage):
    """There is room for a second lease, so the discovery wants to list the partition that the ack has locked.

    Scenario c11.
    """
    every_order(stage, shared_partition, A=[begin + ack, commit], B=[begin + push("b", "x", "y"), commit], C=[take()])


@pytest.mark.parametrize("prepare", [one_leased, shared_partition])
def test_ack_and_discovery_and_push_one_after_the_other(stage: Stage, prepare):
    """The same without open transactions."""
    every_order(stage, prepare, A=[ack], B=[push("b", "x"), push("c", "x", "y")], C=[take(), take()])


def test_two_discoveries_and_a_push(stage: Stage):
    """One consumer discovers in an open transaction while another does too: one of them finds the push."""
    every_order(stage, drained, A=[begin + take(), commit], B=[take(), take()], P=[push("p", "x", "y")])


def test_two_discoveries_that_roll_back(stage: Stage):
    """A discovery that rolls back stores nothing."""
    every_order(stage, drained, A=[begin + take(), rollback], B=[take()], P=[begin + push("p", "x", "y"), commit])


def drained(story: Story) -> None:
    session = story.sessions["B"]
    for step in (push("first", "x"), take(), take()):
        step.do(session)


@pytest.mark.parametrize("delay", ["delayed_processing", "window_buffer"])
def test_partitions_that_are_put_off(stage: Stage, delay: str):
    """A partition is put off or found drained while another push arrives (scenario C10)."""

    def prepare(story: Story) -> None:
        configure(story.observer, story.queue, **{delay: 0.02})
        drained(story)

    every_order(stage, prepare, A=[begin + push("a", "x"), commit], B=[take(), take()], P=[push("b", "x", "y")])


def test_a_pop_by_name_and_a_discovery(stage: Stage):
    """A pop by name leases the partition without the lock of the group.

    The discovery neither waits for it nor loses the partition.
    """
    every_order(stage, drained, A=[begin + pop("x"), ack + commit], B=[take()], P=[push("p", "x", "y")])


def test_a_pop_by_name_of_an_unknown_partition(stage: Stage):
    """By name and by wildcard at once, in open transactions, before the group has discovered the partition."""
    every_order(stage, drained, A=[begin + take(), commit], B=[begin + take("y"), commit], P=[push("p", "x", "y")])


def test_first_pops_in_open_transactions(stage: Stage):
    """Two consumers of a group that does not exist yet: neither waits for the other's transaction."""
    every_order(stage, only_pushed, A=[begin + take(), commit], B=[begin + take(), commit])


def only_pushed(story: Story) -> None:
    push("first", "x", "y").do(story.sessions["A"])


def test_pruning_while_an_ack_is_open(stage: Stage):
    """The push is pruned from the journal before any discovery, and the partition is still leased."""
    prune = run("prune", "SELECT skep.prune_journal('0 s')")
    every_order(stage, one_leased, A=[begin + ack, commit], B=[push("b", "x", "y"), prune], C=[take()])
