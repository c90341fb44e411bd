"""A lease runs out while its holder answers: either the answer counts or the messages come again, never both."""

from collections.abc import Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine import verbs
from tests.engine.verbs import configure
from tests.isolation.programs import ack, ack_first, begin, commit, expire, extend, pop, push, rollback, take
from tests.isolation.steps import Stage, Story, every_order


def short_lease(story: Story) -> None:
    """A holds the two messages of the lane for a moment; E knows how long."""
    push("a", "x").do(story.sessions["A"])
    push("b", "x").do(story.sessions["A"])
    pop(lease_time=0.02).do(story.sessions["A"])
    story.sessions["E"].held = story.sessions["A"].held


def short_shared_lease(story: Story) -> None:
    configure(story.observer, story.queue, concurrency=2)
    short_lease(story)


@pytest.mark.parametrize("prepare", [short_lease, short_shared_lease])
@pytest.mark.parametrize("end", [commit, rollback], ids=["acked", "ack_rolled_back"])
def test_expire_and_ack_and_pop(stage: Stage, prepare, end):
    """C5, C6: the ack is in time or stale; a stale one changes nothing."""
    every_order(stage, prepare, A=[begin + ack, end], E=[expire], B=[take(), take()])


def test_expire_between_two_acks(stage: Stage):
    """C6: what was completed before the takeover does not come again, the rest does."""
    every_order(stage, short_lease, A=[ack_first, ack], E=[expire], B=[take(), take()])


def test_expire_while_two_take_over(stage: Stage):
    """C8: two consumers find the expired lease at once; each message goes to one of them."""
    every_order(stage, short_lease, A=[], E=[expire], B=[begin + take(), commit], C=[take()])


def test_extend_and_expire(stage: Stage):
    """A lease that was extended in time is not taken over, and its ack counts."""

    def check(story: Story) -> None:
        if story.of_kind("extended"):
            assert story.of_kind("refused") == []
            assert len(story.of_kind("acked")) == 2
        story.check_everything_arrives()

    every_order(stage, short_lease, check, A=[begin + extend, commit, ack], E=[expire], B=[take()])


def two_lanes(story: Story) -> None:
    """The group has read the queue, and now two lanes have something for it."""
    for step in (push("old", "x", "y"), take(partitions=2), push("a", "x", "y"), push("b", "x", "y")):
        step.do(story.sessions["A"])


@pytest.mark.parametrize("ends", [(commit, commit), (rollback, commit)], ids=["both_commit", "one_rolls_back"])
def test_two_pops_in_open_transactions(stage: Stage, ends):
    """C8, C9: each gets a lane of its own, and neither hangs behind the other."""
    a, b = ([begin + pop(), ack, end] for end in ends)
    every_order(stage, two_lanes, A=a, B=b)


def test_three_pops_for_two_lanes(stage: Stage):
    """C8: one of them goes without, after a bounded wait."""
    every_order(stage, two_lanes, A=[begin + take(), commit], B=[begin + take(), commit], C=[take()])


def test_two_pops_of_one_shared_lane(stage: Stage):
    """C11: with room for two leases both may be served, disjoint runs of one lane."""

    def prepare(story: Story) -> None:
        configure(story.observer, story.queue, concurrency=2)
        for step in (push("old", "x"), take(), *(push(payload, "x") for payload in "abcd")):
            step.do(story.sessions["A"])

    every_order(stage, prepare, A=[begin + pop(batch=2), ack, commit], B=[begin + pop(batch=2), ack, commit])


def test_an_ack_whose_open_run_is_locked(connect: Callable[..., psycopg.Connection]):
    """It has locked its own run, but another has the open one: it is tried again, and not taken for done."""
    mq, other = connect(), connect()
    configure(mq, "q", concurrency=2)
    verbs.push(mq, "q", 1, 2)
    (delivery,) = verbs.pop(mq, "q", batch=1)
    acks = {"completed": "{[0,1)}"} | dict.fromkeys(
        ["failed", "failed_at_once", "failed_alone", "dead", "released"], "{}"
    )
    query = """
        SELECT skep._ack_lease(r.ctid, r, jsonb_populate_record(NULL::skep.lease_acks, %s))
        FROM skep.runs r WHERE r.lease_id IS NOT NULL FOR NO KEY UPDATE
    """
    with other.transaction():
        other.execute("SELECT FROM skep.runs WHERE end_offset IS NULL FOR NO KEY UPDATE")
        with verbs.refused("40001", str(delivery.lease)):
            mq.execute(query, [Jsonb(acks)])
    mq.execute(query, [Jsonb(acks)])
    assert ([row.payload for row in verbs.drain(mq, "q")], verbs.broken(mq)) == ([2], {})
