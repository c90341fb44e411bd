"""Schedules that become due while others run them, change them, delete their queue or push beside them."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from tests.engine.threads import until
from tests.engine.verbs import broken, call
from tests.isolation.programs import begin, commit, push, rollback, run, take
from tests.isolation.steps import Stage, Story, every_order

RUN = "SELECT messages FROM skep.run_schedules()"
tick = run("tick", RUN, bounded=True)


def _prepare(story: Story) -> None:
    """A schedule whose tick is due, in a queue that a group reads."""
    session = next(iter(story.sessions.values()))
    push("first", "x").do(session)
    take().do(session)
    session.connection.execute(
        "SELECT skep.create_schedule(%(queue)s, '* * * * *', %(queue)s, '\"tick\"', 'x')", {"queue": story.queue}
    )
    session.connection.execute("UPDATE skep.schedules SET next_at = date_trunc('minute', clock_timestamp())")


def _forget(story: Story) -> None:
    story.observer.execute("DELETE FROM skep.schedules")


def ticks(story: Story) -> list[str]:
    rows = call(story.observer, "peek", queue=story.queue)
    return [row.headers["skep-tick"] for row in rows if row.headers]


def check_once(story: Story) -> None:
    """Each tick is in the log once."""
    call(story.observer, "run_schedules")
    found = ticks(story)
    assert (len(found) >= 1, len(set(found))) == (True, len(found)), found
    assert broken(story.observer) == {}
    _forget(story)


def test_two_calls_at_once(stage: Stage):
    every_order(stage, _prepare, check_once, A=[begin + tick, commit], B=[begin + tick, commit])


def test_a_call_that_rolls_back(stage: Stage):
    every_order(stage, _prepare, check_once, A=[begin + tick, rollback], B=[tick], C=[take()])


def test_a_call_beside_a_push(stage: Stage):
    """It does not wait for the partition."""
    every_order(stage, _prepare, check_once, A=[begin + tick, commit], B=[begin + push("b", "x"), commit])


def test_a_call_beside_a_change(stage: Stage):
    change = run("change", "SELECT skep.create_schedule(%(queue)s, '* * * * *', %(queue)s, '\"new\"', 'x')")
    every_order(stage, _prepare, check_once, A=[begin + tick, commit], B=[begin + change, commit])


@pytest.mark.parametrize("what", ["queue", "schedule"])
def test_a_call_beside_a_delete(stage: Stage, what: str):
    """There is no deadlock; after the deletion nothing is pushed."""
    delete = {
        "queue": run("deleted", "SELECT skep.delete_queue(%(queue)s)"),
        "schedule": run("deleted", "SELECT skep.delete_schedule(%(queue)s)"),
    }[what]

    def check(story: Story) -> None:
        before = ticks(story)
        assert (call(story.observer, "run_schedules")[0].messages, ticks(story)) == (0, before)
        assert len(before) <= (1 if what == "schedule" else 0)
        assert broken(story.observer) == {}

    every_order(stage, _prepare, check, A=[begin + tick, commit], B=[begin + delete, commit])


def test_a_call_that_is_killed(stage: Stage, database_url: str):
    story = stage.begin_story(["A"])
    _prepare(story)
    with psycopg.connect(database_url) as doomed:
        assert doomed.execute(RUN).fetchall() == [(1,)]
        assert call(story.observer, "run_schedules")[0].messages == 0
        story.observer.execute("SELECT pg_terminate_backend(%s, 5000)", [doomed.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            doomed.execute("SELECT 1")
    check_once(story)


def test_two_calls_that_have_read_the_same_tick(stage: Stage, database_url: str):
    """Both have read the schedule before one of them pushes its tick: the lock of its row lets only one push it.

    Both wait for a partition that another session is creating; the second gives up last, when the first has committed.
    """
    story = stage.begin_story(["A"])
    _prepare(story)
    mq, queue = story.observer, story.queue
    call(mq, "create_schedule", name="held up", cron="* * * * *", queue=queue, partition="new")
    mq.execute("UPDATE skep.schedules SET next_at = now() - interval '1 hour' WHERE name = 'held up'")
    with psycopg.connect(database_url) as creator, ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        creator.execute("SELECT skep.push(%s, '1', 'new')", [queue])
        for _ in range(2):
            session = stack.enter_context(psycopg.connect(database_url, autocommit=True))
            threads.submit(session.execute, RUN)
            until(lambda session=session: _waits_or_ended(mq, session), "it to begin")
            time.sleep(0.05)
        threads.shutdown()
        creator.rollback()
    found = [row.headers["skep-schedule"] for row in call(mq, "peek", queue=queue) if row.headers]
    assert (found, broken(mq)) == ([queue], {})
    _forget(story)


def _waits_or_ended(mq: psycopg.Connection, session: psycopg.Connection) -> bool:
    query = "SELECT wait_event_type = 'Lock' OR state = 'idle' AND query LIKE '%%run_schedules%%'"
    asked = mq.execute(f"{query} FROM pg_stat_activity WHERE pid = %s", [session.info.backend_pid])
    return asked.fetchall() == [(True,)]
