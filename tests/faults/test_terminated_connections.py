"""Connections end at any moment: an administrator, a firewall, a timeout. Nothing is lost, doubled or out of order."""

import random
import threading
from collections.abc import Callable

import psycopg
import pytest

from skep import AsyncSkep, Skep
from skep.errors import DatabaseUnavailable
from tests.engine.threads import until
from tests.faults.crew import Crew, prepare

Q = "orders"
SESSIONS = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid
"""

END_WAITING = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def test_terminated_at_random_under_load(database_url: str, connect: Callable[..., psycopg.Connection]) -> None:
    """Scenario 39: again and again some sessions end, of producers, consumers, listeners and pools."""
    observer = connect()
    prepare(database_url, Q)
    dice = random.Random(39)
    crew = Crew(database_url, Q)
    with crew.at_work():
        crew.get_on(observer)
        for _ in range(25):
            sessions = [pid for (pid,) in observer.execute(SESSIONS).fetchall()]
            for pid in dice.sample(sessions, k=min(2, len(sessions))):
                observer.execute("SELECT pg_terminate_backend(%s)", [pid])
            crew.get_on(observer, dice.randrange(20))
        crew.get_on(observer)


@pytest.fixture
def lock(connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    """A session that holds what the answers of a consumer need, so that they are under way when they are cut off."""
    connection = connect()
    connection.execute("BEGIN")
    return connection


def cut_off_whoever_waits(connect: Callable[..., psycopg.Connection]) -> None:
    """End the first session that waits for a lock."""
    admin = connect()
    until(lambda: admin.execute(END_WAITING).fetchall(), "somebody to wait for the lock")


def test_an_answer_that_was_cut_off_is_not_taken_for_a_success(
    database_url: str, connect: Callable[..., psycopg.Connection], lock: psycopg.Connection
) -> None:
    """A batch fails, and so does the call that should say so. Going on to the next does not complete it."""
    with Skep(database_url, poll_interval=0.05) as mq:
        queue = mq.queue(Q)
        queue.push_many(["bad", "bad"])
        came: list[int] = []
        for batch in queue.consume(group="g", batch=10, idle_timeout=1):
            came.append(batch[0].attempt)
            if len(came) > 1:
                continue
            lock.execute("SELECT FROM skep.runs FOR UPDATE")
            cutter = threading.Thread(target=cut_off_whoever_waits, args=[connect])
            cutter.start()
            with pytest.raises(DatabaseUnavailable), batch:
                raise ValueError("bad")
            cutter.join()
            lock.execute("ROLLBACK")
        assert len(came) == 2


async def test_an_answer_of_a_task_that_was_cut_off(
    database_url: str, connect: Callable[..., psycopg.Connection], lock: psycopg.Connection
) -> None:
    """The same for the asynchronous face."""
    async with AsyncSkep(database_url, poll_interval=0.05) as mq:
        queue = mq.queue(Q)
        await queue.push_many(["bad", "bad"])
        came: list[int] = []
        async for batch in queue.consume(group="g", batch=10, idle_timeout=1):
            came.append(batch[0].attempt)
            if len(came) > 1:
                continue
            lock.execute("SELECT FROM skep.runs FOR UPDATE")
            cutter = threading.Thread(target=cut_off_whoever_waits, args=[connect])
            cutter.start()
            with pytest.raises(DatabaseUnavailable):
                async with batch:
                    raise ValueError("bad")
            cutter.join()
            lock.execute("ROLLBACK")
        assert len(came) == 2
