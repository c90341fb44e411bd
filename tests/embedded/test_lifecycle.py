"""One process starts the server, uses it and stops it."""

import multiprocessing
import os
import threading
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from skep.errors import EmbeddedError

pytestmark = pytest.mark.usefixtures("made")


def _show(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row
    return row[0]


def test_data_survives_stop_and_start(data_dir, machine, notes):
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
    assert machine.is_down()
    with embedded.start(data_dir) as server:
        assert notes.read(server.url) == ["one"]


def test_second_start_keeps_the_port(data_dir):
    urls = set[str]()
    for _ in range(2):
        with embedded.start(data_dir) as server:
            urls.add(server.url)
    assert len(urls) == 1


def test_stop_is_a_clean_shutdown_even_with_open_connections(data_dir, machine):
    server = embedded.start(data_dir)
    with psycopg.connect(server.url) as connection:
        server.stop()
        assert machine.is_down()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()
    assert "database system is shut down" in machine.log()


def test_each_start_in_a_process_needs_its_own_stop(data_dir, machine, notes):
    first = embedded.start(data_dir)
    second = embedded.start(data_dir)
    assert first.url == second.url
    first.stop()
    first.stop()
    assert notes.responds(second.url)
    second.stop()
    assert machine.is_down()


def test_start_and_stop_in_a_thread(data_dir, machine, notes, eventually):
    servers: list[embedded.EmbeddedPostgres] = []
    starters = [threading.Thread(target=lambda: servers.append(embedded.start(data_dir))) for _ in range(2)]
    for thread in starters:
        thread.start()
    for thread in starters:
        thread.join()
    assert len(machine.supervisors()) == 1
    assert notes.responds(servers[0].url)  # the thread that started it is gone
    stoppers = [threading.Thread(target=server.stop) for server in servers]
    for thread in stoppers:
        thread.start()
    for thread in stoppers:
        thread.join()
    assert machine.is_down()


def _wait_for_word(pipe) -> None:
    pipe.recv()


def test_server_runs_while_a_forked_child_lives(data_dir, machine, notes):
    ours, theirs = multiprocessing.Pipe()
    server = embedded.start(data_dir)
    child = multiprocessing.get_context("fork").Process(target=_wait_for_word, args=(theirs,))
    child.start()
    server.stop()
    assert notes.responds(server.url)
    ours.send("go")
    child.join()
    machine.wait_until_down()


def test_a_forked_child_that_stops_does_not_stop_its_parent(data_dir, notes):
    with embedded.start(data_dir) as server:
        child = multiprocessing.get_context("fork").Process(target=server.stop)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert notes.responds(server.url)


def test_only_loopback_listens_whatever_the_settings_say(data_dir):
    start = embedded.start(data_dir, settings={"listen_addresses": "*"})
    with start as server, psycopg.connect(server.url) as connection:
        assert _listeners(connection.info.port) == {"0100007F"}


def _listeners(port: int) -> set[str]:
    """Return the listening addresses of the port, in the hexadecimal format of the kernel."""
    addresses: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, _, local_port = line.split()[1].rpartition(":")
            if int(local_port, 16) == port and line.split()[3] == "0A":
                addresses.add(address)
    return addresses


def test_settings_apply_to_the_call_that_starts_the_server(data_dir):
    with (
        embedded.start(data_dir, settings={"work_mem": "7MB", "application_name": "it's; a=b"}) as server,
        embedded.start(data_dir, settings={"work_mem": "9MB"}),
    ):
        assert _show(server.url, "work_mem") == "7MB"


def test_unsupported_settings_are_skipped(data_dir):
    settings = {"wal_compression": "no such method", "no_such_setting": "1", "work_mem": "7MB"}
    with embedded.start(data_dir, settings=settings) as server:
        assert _show(server.url, "work_mem") == "7MB"
    log = (data_dir / "supervisor.log").read_text()
    assert "wal_compression=no such method is not supported" in log
    assert "no_such_setting=1 is not supported" in log


@pytest.mark.parametrize("name", ["with spaces", "quote'and\"quote", "comma,и юникод", "long" * 30], ids=range(4))
def test_odd_paths(base, name, notes):
    with embedded.start(base / name) as server:
        notes.write(server.url, "one")


def test_relative_path(base, notes, monkeypatch):
    monkeypatch.chdir(base)
    with embedded.start(Path("data")) as server:
        assert server.data_dir == base / "data"
        assert notes.responds(server.url)


def test_modules_of_the_current_directory_are_not_imported(base, data_dir, notes, monkeypatch):
    (base / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(base)
    with embedded.start(data_dir) as server:
        assert notes.responds(server.url)


def test_variables_of_libpq_have_no_effect(data_dir, notes, monkeypatch):
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("PGPORT", "1")
    with embedded.start(data_dir) as server:
        assert notes.responds(server.url)


def test_file_in_place_of_the_directory(base):
    (base / "file").touch()
    with pytest.raises(EmbeddedError, match=r"cannot use .* as data directory"):
        embedded.start(base / "file")


def test_default_directory_is_the_variable(monkeypatch):
    monkeypatch.setenv("SKEP_DATA_DIR", "/some/where")
    assert embedded.default_data_dir() == Path("/some/where")


def test_default_directory_of_root(monkeypatch):
    monkeypatch.delenv("SKEP_DATA_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert embedded.default_data_dir() == Path("/var/lib/skep")


@pytest.mark.parametrize(
    ("data_home", "expected"),
    [("/xdg", "/xdg/skep"), ("relative", "/home/me/.local/share/skep"), ("", "/home/me/.local/share/skep")],
)
def test_default_directory_of_others(monkeypatch, data_home, expected):
    monkeypatch.delenv("SKEP_DATA_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_DATA_HOME", data_home)
    assert embedded.default_data_dir() == Path(expected)
