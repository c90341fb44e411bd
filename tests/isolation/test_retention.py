"""Retention in the midst of pushes, pops, acks, seeks and newcomers."""

import psycopg

from tests.engine.verbs import broken, call, configure
from tests.isolation.programs import ack, begin, commit, patient, pop, push, run, take
from tests.isolation.steps import Stage, Story, every_order

RETAIN = run("retain", "SELECT missed FROM skep.retain()")
SEEK = run("seek", "SELECT skep.seek('g', %(queue)s, 'beginning')")
JOIN = run("join", "SELECT skep.subscribe('late', %(queue)s, mode => 'all')")
DROP = run("drop", "SELECT skep.drop_idle_partitions()")


def three_messages(story: Story, **options: object) -> None:
    """Three messages, of which the group has done one."""
    for payload in "abc":
        push(payload, "x").do(story.sessions["A"])
    take(batch=1).do(story.sessions["A"])
    configure(story.sessions["A"].connection, story.sessions["A"].queue, **options)


def missed(connection: psycopg.Connection, queue: str, group: str = "g") -> int:
    query = "SELECT coalesce(sum(messages), 0)::int FROM skep.missed WHERE queue = %s AND group_name = %s"
    ((number,),) = connection.execute(query, [queue, group]).fetchall()
    return number


def test_a_hard_limit_and_a_consumer(stage: Stage):
    """89: what the group was owed is either done by it or counted as missed, and nothing is both."""

    def check(story: Story) -> None:
        session = story.sessions["A"]
        done = [*story.of_kind("acked"), *story.drain()]
        assert len({delivery.offset for delivery in done}) == len(done)
        assert len(done) + missed(session.connection, session.queue) == 4
        assert broken(session.connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, max_size=1)

    every_order(stage, prepare, check, A=[pop(batch=1), ack], R=[begin + RETAIN, commit], B=[push("d", "x")])


def test_what_is_completed_and_a_seek_back(stage: Stage):
    """A seek comes before the deletion or after it; either way the group goes on in order."""

    def check(story: Story) -> None:
        session = story.sessions["A"]
        offsets = [delivery.offset for delivery in story.drain()]
        assert offsets == sorted(offsets)
        assert {1, 2} <= {delivery.offset for delivery in story.of_kind("acked")} | {*offsets}
        assert broken(session.connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, completed_retention_seconds=0)

    every_order(stage, prepare, check, A=[take(batch=1)], R=[begin + RETAIN, commit], S=[begin + patient(SEEK), commit])


def test_what_is_completed_and_a_newcomer(stage: Stage):
    """86: whoever joins gets what is there, without an error and without a gap."""

    def check(story: Story) -> None:
        session = story.sessions["A"]
        rows = call(session.connection, "pop", queue=session.queue, group_name="late", batch=10)
        offsets = [row.offset for row in rows]
        assert offsets in ([0, 1, 2], [1, 2], [2], [])
        first = call(session.connection, "queue_status", queue=session.queue)[0]
        assert len(offsets) == first.messages
        assert broken(session.connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, completed_retention_seconds=0)

    every_order(stage, prepare, check, A=[take(batch=1)], R=[begin + RETAIN, commit], N=[begin + JOIN, commit])


def test_an_idle_lane_and_a_push(stage: Stage):
    """Nothing pushed is lost when its lane is dropped at the same time."""

    def check(story: Story) -> None:
        assert [delivery.payload for delivery in story.drain()] == ["d x"]
        assert broken(story.sessions["A"].connection) == {}

    def prepare(story: Story) -> None:
        three_messages(story, completed_retention_seconds=0, drop_idle_seconds=0.000001)
        session = story.sessions["A"]
        take(batch=10).do(session)
        call(session.connection, "retain")

    every_order(stage, prepare, check, A=[begin + push("d", "x"), commit], D=[begin + patient(DROP), commit])
