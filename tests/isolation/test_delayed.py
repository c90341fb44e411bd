"""Delayed messages that become due while others push, clear, cancel, delete and append: each is appended once."""

import psycopg
import pytest

from tests.engine.verbs import broken, call
from tests.isolation.programs import begin, commit, push, rollback, run, take
from tests.isolation.steps import Session, Stage, Step, Story, every_order

APPEND = "SELECT messages FROM skep.append_delayed()"
append = run("append", APPEND, bounded=True)
append_one = run("append one", "SELECT messages FROM skep.append_delayed(1)", bounded=True)


DUE = "UPDATE skep.delayed_messages SET due_at = due_at - interval '1 hour' WHERE id = %s"


def delay(payload: str, partition: str) -> Step:
    """Push a message that is due when the next step begins."""

    def do(session: Session) -> None:
        row = session.connection.execute(
            "SELECT id FROM skep.push(%s, to_jsonb(%s::text), %s, delay => 3600)",
            [session.queue, f"{payload} {partition}", partition],
        )
        session.connection.execute(DUE, row.fetchone())
        session.happened("pushed", f"{payload} {partition}")

    return Step(f"delay {payload}", do)


def prepare(*items: tuple[str, str]):
    """Some messages are due; the group knows the queue."""

    def do(story: Story) -> None:
        session = next(iter(story.sessions.values()))
        take().do(session)
        for payload, partition in items:
            delay(payload, partition).do(session)

    return do


TWO_PARTITIONS = prepare(("a", "x"), ("b", "x"), ("c", "y"))


def check_all(story: Story) -> None:
    """Everything arrives, and in each partition in order of due time."""
    while call(story.observer, "append_delayed")[0].messages:
        pass
    partitions = {"x": [], "y": []}
    for row in call(story.observer, "peek", queue=story.queue):
        partitions[row.partition].append(row.payload)
    assert [payload for payload in partitions["x"] if payload[0] in "ab"] == ["a x", "b x"]
    story.check_everything_arrives()


def test_two_appenders(stage: Stage):
    """They share the work or one does it all; neither waits, and the order of a partition is kept."""
    every_order(stage, TWO_PARTITIONS, check_all, A=[begin + append_one, append_one, commit], B=[append, append])


def test_an_appender_that_rolls_back(stage: Stage):
    every_order(stage, TWO_PARTITIONS, check_all, A=[begin + append, rollback], B=[append_one], C=[take()])


def test_an_appender_beside_pops(stage: Stage):
    """A pop appends too."""
    every_order(stage, TWO_PARTITIONS, check_all, A=[begin + append, commit], B=[take(), take()])


def test_an_appender_beside_pushes(stage: Stage):
    """A push waits for an appender as for another push; an appender never waits."""
    b = [begin + push("now", "x"), delay("d", "x"), commit]
    every_order(stage, TWO_PARTITIONS, check_all, A=[begin + append, commit], B=b)


def test_an_appender_beside_clear(stage: Stage):
    """Messages that existed are deleted wherever they were stored; nothing is appended later."""
    clear = run("cleared", "SELECT skep.clear_queue(%(queue)s)")

    def check(story: Story) -> None:
        assert call(story.observer, "append_delayed")[0].messages == 0
        assert [event.what for event in story.events if event.kind == "cleared"] == [[(3,)]]
        assert (call(story.observer, "peek", queue=story.queue), story.drain()) == ([], [])
        assert broken(story.observer) == {}

    every_order(stage, TWO_PARTITIONS, check, A=[begin + append, commit], B=[begin + clear, commit])
    every_order(stage, TWO_PARTITIONS, check, A=[begin + append_one, commit], B=[clear])


@pytest.mark.parametrize("what", ["queue", "partition"])
def test_an_appender_beside_delete(stage: Stage, what: str):
    delete = {
        "queue": run("deleted", "SELECT skep.delete_queue(%(queue)s)"),
        "partition": run("deleted", "SELECT skep.delete_partition(%(queue)s, 'x')"),
    }[what]
    left = {"queue": [], "partition": ["c y"]}[what]

    def check(story: Story) -> None:
        call(story.observer, "append_delayed")
        assert [row.payload for row in call(story.observer, "peek", queue=story.queue)] == left
        assert broken(story.observer) == {}

    every_order(stage, TWO_PARTITIONS, check, A=[begin + append, commit], B=[begin + delete, commit])


def test_an_appender_beside_cancel(stage: Stage):
    """A message is either appended or cancelled; the partition keeps its order if the cancel fails."""
    cancel = run(
        "cancelled", "SELECT skep.cancel_delayed(id) FROM skep.list_delayed(%(queue)s) WHERE payload = '\"a x\"'"
    )

    def check(story: Story) -> None:
        call(story.observer, "append_delayed")
        (cancelled,) = story.of_kind("cancelled") or [[]]
        payloads = [row.payload for row in call(story.observer, "peek", queue=story.queue, partition="x")]
        assert payloads == (["b x"] if cancelled == [(True,)] else ["a x", "b x"])
        assert broken(story.observer) == {}

    every_order(stage, TWO_PARTITIONS, check, A=[begin + append_one, commit], B=[begin + cancel, commit])
    every_order(stage, TWO_PARTITIONS, check, A=[append_one, append], B=[begin + cancel, rollback])


def test_a_duplicate_while_the_first_is_appended(stage: Stage):
    """It is a duplicate at every moment."""

    def first(story: Story) -> None:
        session = story.sessions["A"]
        row = session.connection.execute(
            "SELECT id FROM skep.push(%s, '1', transaction_id => 't', delay => 3600)", [session.queue]
        )
        session.connection.execute(DUE, row.fetchone())

    again = run("again", "SELECT (skep.push(%(queue)s, '2', transaction_id => 't')).status")
    later = run("later", "SELECT (skep.push(%(queue)s, '3', transaction_id => 't', delay => 60)).status")

    def check(story: Story) -> None:
        assert [*story.of_kind("again"), *story.of_kind("later")] == [[("duplicate",)], [("duplicate",)]]
        call(story.observer, "append_delayed")
        assert [row.payload for row in call(story.observer, "peek", queue=story.queue)] == [1]

    every_order(stage, first, check, A=[begin + append, commit], B=[again], C=[later])


def test_an_appender_that_is_killed(stage: Stage, database_url: str):
    """Its work is rolled back, and done by the next one."""
    story = stage.begin_story(["A"])
    TWO_PARTITIONS(story)
    with psycopg.connect(database_url) as doomed:
        assert doomed.execute(APPEND).fetchall() == [(3,)]
        assert call(story.observer, "append_delayed")[0].messages == 0  # it does not wait
        story.observer.execute("SELECT pg_terminate_backend(%s, 5000)", [doomed.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            doomed.execute("SELECT 1")
    check_all(story)
