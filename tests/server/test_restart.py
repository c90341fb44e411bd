"""A published Queen client that waits for messages while the server is restarted, or its database is away."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.server.conftest import PROGRAMS, SECONDS_TO_TALK
from tests.server.environments import queen_python
from tests.server.process import free_port, serving


class Consumer:
    """The program steady.py: it handles a message, and when told to go on another one."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def wait_for(self, words: str) -> None:
        """Return when the program or its client says so."""
        assert self._process.stdout is not None
        assert any(words in line for line in self._process.stdout), f"it ended before it said {words}"

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()

    def ends_well(self) -> None:
        said, _ = self._process.communicate("go on\n", timeout=SECONDS_TO_TALK)
        assert self._process.returncode == 0
        assert json.loads(said.splitlines()[-1]) == {"handled": ["before", "after"]}


@pytest.fixture
def url() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def consumer(version: str, url: str) -> Generator[Consumer]:
    # -u: the client prints without flushing, so its output would only arrive when the program ends.
    command = [queen_python(version), "-u", PROGRAMS / "steady.py", "steady", url]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield Consumer(process)
        finally:
            process.kill()  # it has ended by itself, or something went wrong


def test_a_consumer_lives_through_a_restart(consumer: Consumer, url: str, database_url: str, tmp_path: Path):
    port = int(url.rpartition(":")[2])
    with serving(database_url, tmp_path, port=port):
        consumer.go_on()
        consumer.wait_for("handled one")
    with serving(database_url, tmp_path, port=port):
        consumer.ends_well()


def test_a_consumer_lives_without_database(
    consumer: Consumer, url: str, database_url: str, postgres_url: str, tmp_path: Path
):
    """Until the client gives up a request and begins anew: longer than a moment."""
    with serving(database_url, tmp_path, port=int(url.rpartition(":")[2])):
        consumer.go_on()
        consumer.wait_for("handled one")
        with closed(database_url, postgres_url):
            consumer.wait_for("Network error")
        consumer.ends_well()


@contextmanager
def closed(database_url: str, postgres_url: str) -> Generator[None]:
    """Send everybody out of a database and let nobody in."""
    name = str(conninfo_to_dict(database_url)["dbname"])
    doors = sql.SQL("ALTER DATABASE {name} ALLOW_CONNECTIONS {open}")
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(doors.format(name=sql.Identifier(name), open=sql.Literal(False)))  # noqa: FBT003
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            admin.execute(doors.format(name=sql.Identifier(name), open=sql.Literal(True)))  # noqa: FBT003
