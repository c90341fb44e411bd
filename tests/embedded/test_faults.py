"""Processes are killed at the worst moment; committed data survives and the next start works."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from skep.embedded.account import server_account
from skep.errors import EmbeddedError
from tests.postgres_binaries import require

pytestmark = pytest.mark.usefixtures("made")


@pytest.fixture
def as_server_account(data_dir):
    """Return arguments of Popen that run a process as the user of PostgreSQL."""
    account = server_account(data_dir / "pgdata")
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}


def test_killed_postmaster_is_started_again_while_in_use(data_dir, machine, notes, eventually):
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
        for _ in range(2):
            killed = machine.postmaster()
            os.kill(killed, signal.SIGKILL)
            eventually(lambda killed=killed: machine.postmaster() not in (0, killed) and notes.responds(server.url))
        assert notes.read(server.url) == ["one"]
    assert machine.is_down()


def test_start_after_the_postmaster_was_killed_waits_for_the_new_one(data_dir, machine, notes):
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
        supervisor = machine.supervisor()
        os.kill(supervisor, signal.SIGSTOP)  # so it cannot restart PostgreSQL yet
        os.kill(machine.postmaster(), signal.SIGKILL)
        os.kill(supervisor, signal.SIGCONT)
    with embedded.start(data_dir) as server:
        assert notes.read(server.url) == ["one"]


def test_stop_ends_a_server_that_is_down_for_a_moment(data_dir, machine):
    server = embedded.start(data_dir)
    os.kill(machine.postmaster(), signal.SIGKILL)
    server.stop()
    assert machine.is_down()
    assert machine.supervisors() == []


@pytest.fixture
def busy_backend():
    """Return a function that starts a backend which is busy forever and never checks its postmaster."""
    connections: list[psycopg.Connection] = []

    def begin(url: str) -> None:
        connection = psycopg.connect(url)
        connections.append(connection)
        connection.pgconn.send_query(b"DO $$ BEGIN LOOP END LOOP; END $$")
        connection.pgconn.flush()

    yield begin
    for connection in connections:
        connection.close()


def _computes(url: str) -> bool:
    with psycopg.connect(url) as connection:
        query = "SELECT 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'DO %'"
        return connection.execute(query).fetchone() is not None


def test_backend_that_outlives_the_postmaster_is_ended(data_dir, machine, notes, eventually, busy_backend):
    with embedded.start(data_dir) as server:
        busy_backend(server.url)
        eventually(lambda: _computes(server.url))
        os.kill(machine.postmaster(), signal.SIGKILL)
        eventually(lambda: notes.responds(server.url))
    assert machine.is_down()


def test_no_backend_outlives_the_last_user(data_dir, machine, eventually, busy_backend):
    with embedded.start(data_dir) as server:
        busy_backend(server.url)
        eventually(lambda: _computes(server.url))
        os.kill(machine.postmaster(), signal.SIGKILL)
    assert machine.is_down()


def test_killed_supervisor_takes_postgres_along_cleanly(data_dir, machine, notes):
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
        os.kill(machine.supervisor(), signal.SIGKILL)
        machine.wait_until_down()
        assert "database system is shut down" in machine.log()
        with embedded.start(data_dir) as again:  # the first use was never stopped
            assert notes.read(again.url) == ["one"]
        assert notes.responds(again.url)


def test_start_right_after_the_supervisor_was_killed(data_dir, machine, notes, eventually):
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
        os.kill(machine.supervisor(), signal.SIGKILL)
        eventually(machine.supervisor_is_gone)
        with embedded.start(data_dir) as again:  # while PostgreSQL is still shutting down
            assert notes.read(again.url) == ["one"]


def test_everything_killed(data_dir, new_user, machine, notes):
    user = new_user()
    notes.write(user.url(), "one")
    assert len(machine.family()) > 4
    machine.kill_everything()
    user.kill()
    machine.wait_until_down()
    assert machine.postmaster()  # it could not remove its files
    with embedded.start(data_dir) as server:
        assert notes.read(server.url) == ["one"]
    assert "database system was not properly shut down" in machine.log()


def test_process_id_of_a_killed_server_in_use_again(data_dir, machine, notes, as_server_account):
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
        machine.kill_everything()
        machine.wait_until_down()
    with subprocess.Popen(["sleep", "600"], **as_server_account) as other:
        try:
            _pretend(data_dir, machine, other.pid)
            with embedded.start(data_dir) as server:
                assert notes.read(server.url) == ["one"]
        finally:
            other.kill()


def _pretend(data_dir: Path, machine, pid: int) -> None:
    """Rewrite the files of a killed server as if it had this process id."""
    pid_file = data_dir / "pgdata" / "postmaster.pid"
    pid_file.write_text(pid_file.read_text().replace(str(machine.postmaster()), str(pid), 1))
    record = data_dir / "server.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"postmaster": pid}))


def test_a_server_that_is_not_ours_is_left_alone(data_dir, machine, as_server_account):
    """A user runs PostgreSQL by hand on our data: no second one may start on it."""
    embedded.start(data_dir).stop()
    postgres = require(18) / "postgres"
    with subprocess.Popen(
        [postgres, "-D", data_dir / "pgdata", "-cport=14999", "-cunix_socket_directories="],
        stderr=subprocess.PIPE,
        cwd="/",
        **as_server_account,
    ) as other:
        assert other.stderr
        try:
            assert any(b"ready to accept connections" in line for line in other.stderr)
            with pytest.raises(EmbeddedError, match="another postmaster"):
                embedded.start(data_dir)
        finally:
            other.send_signal(signal.SIGINT)


def test_port_taken_meanwhile(data_dir, notes):
    with embedded.start(data_dir) as server:
        first = server.url
        notes.write(first, "one")
    port = int(first.rpartition(":")[2].partition("/")[0])
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", port))
        thief.listen()
        with embedded.start(data_dir) as server:
            assert server.url != first
            assert notes.read(server.url) == ["one"]


def test_error_shows_why_postgres_does_not_start_and_nothing_older(data_dir, machine, notes):
    embedded.start(data_dir).stop()
    with pytest.raises(EmbeddedError, match='could not access file "no_such_library"') as error:
        embedded.start(data_dir, settings={"shared_preload_libraries": "no_such_library"})
    assert "ready to accept connections" not in str(error.value)
    with embedded.start(data_dir) as server:
        assert notes.responds(server.url)


@pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python"])
def test_error_if_the_supervisor_cannot_run(data_dir, monkeypatch, python):
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(EmbeddedError, match="supervisor"):
        embedded.start(data_dir)


def test_a_failed_start_does_not_count_as_a_user(data_dir, machine):
    with pytest.raises(EmbeddedError):
        embedded.start(data_dir, settings={"shared_preload_libraries": "no_such_library"})
    machine.wait_until_down()
    server = embedded.start(data_dir)
    server.stop()
    assert machine.is_down()
