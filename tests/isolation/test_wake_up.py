"""The lost wake-up: a lane is found drained while somebody fills it."""

import pytest

from tests.engine.verbs import configure
from tests.isolation.programs import ack, begin, commit, pop, push, rollback, run, take
from tests.isolation.steps import Stage, Story, every_order


def one_leased(story: Story) -> None:
    """A holds the only message of the lane."""
    configure(story.observer, story.queue, retry_delay=0)
    push("first", "x").do(story.sessions["A"])
    pop().do(story.sessions["A"])


def shared_lane(story: Story) -> None:
    """The same on a lane that two consumers may share; C has looked for more in vain."""
    configure(story.observer, story.queue, concurrency=2)
    one_leased(story)
    take().do(story.sessions["C"])


def test_ack_and_look_and_push(stage: Stage):
    """The push also opens another lane, so that the look in between remembers what it has seen."""
    every_order(stage, one_leased, A=[begin + ack, commit], B=[begin + push("b", "x", "y"), commit], C=[take(), take()])


def test_ack_that_rolls_back_and_look_and_push(stage: Stage):
    """The lane is leased again when the ack is undone; what was pushed meanwhile waits behind it."""
    every_order(stage, one_leased, A=[begin + ack, rollback], B=[begin + push("b", "x", "y"), commit], C=[take()])


def test_ack_and_look_and_push_on_a_shared_lane(stage: Stage):
    """C11: there is room for a second lease, so the look wants to wake the lane that the ack has locked."""
    every_order(stage, shared_lane, A=[begin + ack, commit], B=[begin + push("b", "x", "y"), commit], C=[take()])


@pytest.mark.parametrize("prepare", [one_leased, shared_lane])
def test_ack_and_look_and_push_one_after_the_other(stage: Stage, prepare):
    """The same without open transactions: each step is whole."""
    every_order(stage, prepare, A=[ack], B=[push("b", "x"), push("c", "x", "y")], C=[take(), take()])


def test_two_lookers_and_a_push(stage: Stage):
    """One consumer looks in an open transaction while another looks too: the push is news to one of them."""
    every_order(stage, drained, A=[begin + take(), commit], B=[take(), take()], P=[push("p", "x", "y")])


def test_two_lookers_roll_back(stage: Stage):
    """What a look has remembered in a transaction that rolls back is not remembered."""
    every_order(stage, drained, A=[begin + take(), rollback], B=[take()], P=[begin + push("p", "x", "y"), commit])


def drained(story: Story) -> None:
    session = story.sessions["B"]
    for step in (push("first", "x"), take(), take()):
        step.do(session)


@pytest.mark.parametrize("delay", ["delayed_processing", "window_buffer"])
def test_lanes_that_are_put_off(stage: Stage, delay: str):
    """C10: a lane is put off or found drained while another push arrives."""

    def prepare(story: Story) -> None:
        configure(story.observer, story.queue, **{delay: 0.02})
        drained(story)

    every_order(stage, prepare, A=[begin + push("a", "x"), commit], B=[take(), take()], P=[push("b", "x", "y")])


def test_single_lane_pop_and_wildcard_look(stage: Stage):
    """A pop by name takes the lane without the reader's lock; the look neither hangs behind it nor loses the lane."""
    every_order(stage, drained, A=[begin + pop("x"), ack + commit], B=[take()], P=[push("p", "x", "y")])


def test_single_lane_pop_of_a_lane_never_met(stage: Stage):
    """By name and by wildcard at once, in open transactions, before the group has met the lane."""
    every_order(stage, drained, A=[begin + take(), commit], B=[begin + take("y"), commit], P=[push("p", "x", "y")])


def test_first_contact_in_open_transactions(stage: Stage):
    """Two consumers of a group that does not exist yet: neither hangs behind the other's transaction."""
    every_order(stage, only_pushed, A=[begin + take(), commit], B=[begin + take(), commit])


def only_pushed(story: Story) -> None:
    push("first", "x", "y").do(story.sessions["A"])


def test_pruning_while_an_ack_is_open(stage: Stage):
    """The push is pruned from the journal before anybody has looked, and the lane is still leased."""
    prune = run("prune", "SELECT skep.prune_journal('0 s')")
    every_order(stage, one_leased, A=[begin + ack, commit], B=[push("b", "x", "y"), prune], C=[take()])
