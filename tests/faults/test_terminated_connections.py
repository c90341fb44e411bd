"""Connections end at any time, by an administrator, a firewall or a timeout: no loss, no duplicate, in order."""

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
    """Sessions of producers, consumers, listeners and pools end repeatedly."""
    observer = connect()
    prepare(database_url, Q)
    rng = random.Random(39)
    crew = Crew(database_url, Q)
    with crew.at_work():
        crew.make_progress(observer)
        for _ in range(25):
            sessions = [pid for (pid,) in observer.execute(SESSIONS).fetchall()]
            for pid in rng.sample(sessions, k=min(2, len(sessions))):
                observer.execute("SELECT pg_terminate_backend(%s)", [pid])
            crew.make_progress(observer, rng.randrange(20))
        crew.make_progress(observer)


@pytest.fixture
def lock(connect: Callable[..., psycopg.Connection]) -> psycopg.Connection:
    """A session with a lock that acks need, so that they wait when their connection ends."""
    connection = connect()
    connection.execute("BEGIN")
    return connection


def end_waiting_session(connect: Callable[..., psycopg.Connection]) -> None:
    """End the first session that waits for a lock."""
    admin = connect()
    until(lambda: admin.execute(END_WAITING).fetchall(), "a session to wait for the lock")


def test_a_failed_call_does_not_complete_a_batch(
    database_url: str, connect: Callable[..., psycopg.Connection], lock: psycopg.Connection
) -> None:
    """A batch fails, and the connection ends during fail(). The next batch does not complete it."""
    with Skep(database_url, poll_interval=0.05) as mq:
        queue = mq.queue(Q)
        queue.push_many(["bad", "bad"])
        came: list[int] = []
        for batch in queue.consume(group="g", batch=10, idle_timeout=1):
            came.append(batch[0].attempt)
            if len(came) > 1:
                continue
            lock.execute("SELECT FROM skep.runs FOR UPDATE")
            cutter = threading.Thread(target=end_waiting_session, args=[connect])
            cutter.start()
            with pytest.raises(DatabaseUnavailable), batch:
                raise ValueError("bad")
            cutter.join()
            lock.execute("ROLLBACK")
        assert len(came) == 2


async def test_a_failed_call_does_not_complete_a_batch_async(
    database_url: str, connect: Callable[..., psycopg.Connection], lock: psycopg.Connection
) -> None:
    """The same with the async client."""
    async with AsyncSkep(database_url, poll_interval=0.05) as mq:
        queue = mq.queue(Q)
        await queue.push_many(["bad", "bad"])
        came: list[int] = []
        async for batch in queue.consume(group="g", batch=10, idle_timeout=1):
            came.append(batch[0].attempt)
            if len(came) > 1:
                continue
            lock.execute("SELECT FROM skep.runs FOR UPDATE")
            cutter = threading.Thread(target=end_waiting_session, args=[connect])
            cutter.start()
            with pytest.raises(DatabaseUnavailable):
                async with batch:
                    raise ValueError("bad")
            cutter.join()
            lock.execute("ROLLBACK")
        assert len(came) == 2
