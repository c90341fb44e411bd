"""Seeks and deletions amid pops, acks and pushes."""

from typing import LiteralString

import pytest

from tests.isolation.programs import ack, begin, commit, patient, pop, push, run, take
from tests.isolation.steps import Stage, Story, every_order

DELETE_QUEUE = run("delete", "SELECT skep.delete_queue(%(queue)s)")
DELETE_PARTITION = run("delete", "SELECT skep.delete_partition(%(queue)s, 'x')")

DELETE_GROUP = run("forget", "SELECT skep.delete_group('g')")

ORPHANS = """
    SELECT 'run' FROM skep.runs r WHERE NOT EXISTS (SELECT FROM skep.partitions p WHERE p.id = r.partition_id)
    UNION ALL
    SELECT 'start' FROM skep.starts s WHERE NOT EXISTS (SELECT FROM skep.partitions p WHERE p.id = s.partition_id)
    UNION ALL
    SELECT 'run' FROM skep.runs r WHERE NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.id = r.group_queue_id)
    UNION ALL
    SELECT 'start' FROM skep.starts s WHERE NOT EXISTS (SELECT FROM skep.group_queues g WHERE g.id = s.group_queue_id)
"""


def three_messages(story: Story) -> None:
    """Push three messages, of which the group completes one; the next pop discovers no new partition."""
    for payload in "abc":
        push(payload, "x").do(story.sessions["A"])
    take(batch=1).do(story.sessions["B"])


def what_comes(rest: Story) -> list[str]:
    """Return the messages that are acknowledged in the rest of a story or drained at its end; each at most once."""
    come = [*rest.of_kind("acked"), *rest.drain()]
    assert len({(delivery.partition_id, delivery.offset) for delivery in come}) == len(come)
    rest.check_order()
    return sorted(delivery.payload for delivery in come)


@pytest.mark.parametrize(("position", "expected"), [("beginning", ["a x", "b x", "c x"]), ("end", [])])
def test_seek_and_pop_and_ack(stage: Stage, position: LiteralString, expected: list[str]):
    """After the seek the group reads from there, whatever was leased meanwhile (scenarios S7, C5)."""

    def check(story: Story) -> None:
        assert what_comes(story.ended_after("seek")) == expected

    seek = run("seek", f"SELECT skep.seek('g', %(queue)s, '{position}')")
    every_order(stage, three_messages, check, A=[pop(), ack], S=[begin + seek, commit], B=[take()])


def test_seek_and_an_unknown_partition(stage: Stage):
    """A pop discovers the partition at its old start while the seek gives it a new one: one of them is first.

    Scenario s7.
    """

    def prepare(story: Story) -> None:
        for step in (push("a", "x"), take(), push("b", "y"), push("c", "y")):
            step.do(story.sessions["A"])

    def check(story: Story) -> None:
        assert what_comes(story.ended_after("seek")) == ["c y"]

    seek = run("seek", "SELECT skep.seek('g', %(queue)s, '1')")
    for partition in (None, "y"):
        a = [begin + patient(pop(partition)), commit, ack]
        every_order(stage, prepare, check, A=a, S=[begin + seek, commit])


def test_seek_to_the_end_and_push(stage: Stage):
    """Messages that commit after the seek are delivered, even if pushed before; earlier ones are not (scenario S7)."""

    def check(story: Story) -> None:
        rest = story.committed_after("seek")
        assert what_comes(rest) == sorted(rest.of_kind("pushed"))

    seek = run("seek", "SELECT skep.seek('g', %(queue)s, 'end')")
    every_order(
        stage, three_messages, check, A=[begin + push("late", "x", "y"), commit], S=[seek], B=[take(partitions=2)]
    )


@pytest.mark.parametrize("keep", ["true", "false"], ids=["keeping_the_subscription", "forgetting_it"])
def test_delete_group_and_pop_and_ack(stage: Stage, keep: LiteralString):
    """The group starts again from the beginning, and its leases are stale."""

    def check(story: Story) -> None:
        assert what_comes(story.ended_after("delete")) == ["a x", "b x", "c x"]

    delete = run("delete", f"SELECT skep.delete_group('g', keep_subscription => {keep})")
    a, b = [patient(pop()), ack], [patient(take())]
    every_order(stage, three_messages, check, A=a, D=[begin + delete, commit], B=b)


@pytest.mark.parametrize("delete", [DELETE_QUEUE, DELETE_PARTITION], ids=["queue", "partition"])
@pytest.mark.parametrize("exists", [True, False], ids=["partition_exists", "partition_is_created"])
def test_delete_and_push(stage: Stage, delete, *, exists: bool):
    """A push that waits for the deletion creates the queue again and is delivered; older messages are gone."""

    def check(story: Story) -> None:
        if story.of_kind("delete") == [[(False,)]]:  # the partition did not exist yet, so nothing was deleted
            story.check_everything_arrives()
            return
        pushed = story.ended_after("delete").of_kind("pushed")
        drained = [delivery.payload for delivery in story.drain()]
        acked = [delivery.payload for delivery in story.of_kind("acked")]
        assert set(drained) <= set(pushed)
        assert [acked.count(payload) + drained.count(payload) for payload in pushed] == [1] * len(pushed)
        story.check_order()

    def prepare(story: Story) -> None:
        push("first", "x" if exists else "y").do(story.sessions["A"])
        take().do(story.sessions["A"])

    a = [begin + push("late", "x"), commit]
    every_order(stage, prepare, check, A=a, D=[begin + delete, commit], C=[patient(take())])


@pytest.mark.parametrize("delete", [DELETE_QUEUE, DELETE_PARTITION], ids=["queue", "partition"])
@pytest.mark.parametrize("partition", [None, "x"], ids=["wildcard", "by_name"])
def test_delete_and_pop(stage: Stage, delete, partition: str | None):
    """An open pop whose partition is deleted leaves no cursor and no lease behind."""

    def prepare(story: Story) -> None:
        push("first", "y").do(story.sessions["A"])
        take().do(story.sessions["A"])
        push("late", "x").do(story.sessions["A"])

    def check(story: Story) -> None:
        story.check_order()
        assert story.observer.execute(ORPHANS).fetchall() == []

    a = [begin + patient(pop(partition)), ack + commit]
    every_order(stage, prepare, check, A=a, D=[begin + delete, commit])


@pytest.mark.parametrize("partition", [None, "x"], ids=["wildcard", "by_name"])
def test_delete_group_and_delete_queue(stage: Stage, partition: str | None):
    """Both wait for an existing lease; neither waits for the other while it holds a lock that the other needs."""

    def prepare(story: Story) -> None:
        for step in (push("a", "x"), take(), push("b", "x"), push("c", "y")):
            step.do(story.sessions["A"])

    def check(story: Story) -> None:
        assert story.observer.execute(ORPHANS).fetchall() == []
        assert [delivery.payload for delivery in story.drain()] == []

    a = [begin + patient(pop(partition)), commit]
    every_order(stage, prepare, check, A=a, D=[begin + DELETE_QUEUE, commit], G=[DELETE_GROUP])


@pytest.mark.parametrize("delete", [DELETE_QUEUE, DELETE_PARTITION, DELETE_GROUP], ids=["queue", "partition", "group"])
def test_seek_and_delete(stage: Stage, delete):
    """In every order there is no deadlock, nothing is left behind, and the group reads what exists."""

    def prepare(story: Story) -> None:
        for step in (push("a", "x"), take(), push("b", "x"), push("c", "y")):
            step.do(story.sessions["A"])

    def check(story: Story) -> None:
        assert story.observer.execute(ORPHANS).fetchall() == []
        story.drain()
        story.check_order()

    seek = run("seek", "SELECT skep.seek('g', %(queue)s, 'beginning')")
    a = [begin + patient(pop()), commit]
    every_order(stage, prepare, check, A=a, D=[begin + delete, commit], S=[begin + seek, commit])


ALL_OF_IT = "SELECT skep.subscribe('g', %(queue)s, mode => 'all')"
BEGINNING = "SELECT skep.seek('g', %(queue)s, 'beginning')"


@pytest.mark.parametrize("other", [ALL_OF_IT, BEGINNING], ids=["subscribe", "seek"])
def test_a_start_at_a_message_and_another_start(stage: Stage, other: LiteralString):
    """One of them wins in every partition: a message does not start its own partition beside an `all` that came first.

    Scenario s1.
    """

    def prepare(story: Story) -> None:
        for step in (push("a", "x"), push("b", "x"), push("c", "x")):
            step.do(story.sessions["A"])

    def check(story: Story) -> None:
        asked = "SELECT mode FROM skep.subscriptions WHERE queue = %s"
        ((mode,),) = stage.observer.execute(asked, [story.sessions["A"].queue]).fetchall()
        assert what_comes(story) == {"all": ["a x", "b x", "c x"], "timestamp": ["c x"]}[mode]

    at_message = run("subscribe", """
        SELECT skep.subscribe('g', q.name, mode => 'message_id', start_from => skep.message_id(p.id, 2)::text)
        FROM skep.queues q JOIN skep.partitions p ON p.queue_id = q.id WHERE q.name = %(queue)s
    """)  # fmt: skip
    every_order(stage, prepare, check, A=[begin + run("other", other), commit], B=[begin + at_message, commit])
