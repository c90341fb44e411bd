"""The first start creates the data, completely or not at all."""

import os
import stat
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from tests.postgres_binaries import require


def _show(url: str, name: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row
    return row[0]


def test_settings_of_the_cluster(data_dir):
    with embedded.start(data_dir) as server, psycopg.connect(server.url) as connection:
        assert server.data_dir == data_dir
        assert (connection.info.user, connection.info.dbname) == ("postgres", "skep")
        assert _show(server.url, "data_checksums") == "on"
        assert _show(server.url, "server_encoding") == "UTF8"
        assert _show(server.url, "fsync") == "on"
        collation = "(SELECT datcollate FROM pg_database WHERE datname = current_database())"
        row = connection.execute(f"SELECT {collation}, rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        assert row == ("C", True)


def test_every_connection_needs_the_password(data_dir):
    with embedded.start(data_dir) as server:
        with psycopg.connect(server.url) as connection:
            methods = connection.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
        assert methods == [("scram-sha-256",)]
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.url, password="wrong")
        socket_directory = _show(server.url, "unix_socket_directories").strip('"')
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.url, host=socket_directory, password="wrong")
        psycopg.connect(server.url, host=socket_directory).close()


def test_password_is_for_its_owner_only(data_dir):
    with embedded.start(data_dir) as server:
        file = data_dir / "password"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.stat().st_uid == os.geteuid()
        assert file.read_text() in server.url
        assert file.read_text() not in repr(server)
        others = [entry for entry in data_dir.rglob("*") if entry.is_file() and entry.name == "password"]
        assert others == [file]


def test_concurrent_first_starts_create_one_server(new_user, machine, notes):
    users = [new_user() for _ in range(4)]
    urls = {user.url() for user in users}
    assert len(urls) == 1
    assert notes.responds(urls.pop())
    assert len(machine.supervisors()) == 1
    assert machine.log().count("starting PostgreSQL") == 1


def test_interrupted_initdb_leaves_nothing_in_the_way(base, data_dir, new_user, machine, notes, eventually):
    user = new_user(_hanging_initdb(base))
    eventually(lambda: list(data_dir.glob("pgdata.draft-*/data/PG_VERSION")))
    machine.kill_everything()
    user.kill()
    assert list(data_dir.glob("pgdata.draft-*"))
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
    assert not list(data_dir.glob("pgdata.draft-*"))


def _hanging_initdb(base: Path) -> Path:
    """Return programs whose initdb does half of its work and then waits."""
    bin_dir = base / "bin"
    bin_dir.mkdir()
    (bin_dir / "postgres").symlink_to(require(18) / "postgres")
    initdb = bin_dir / "initdb"
    initdb.write_text(
        "#!/bin/sh\n"
        'for argument; do case "$argument" in --pgdata=*) data="${argument#--pgdata=}" ;; esac; done\n'
        'echo 18 > "$data/PG_VERSION"\n'
        "exec sleep 600\n"
    )
    initdb.chmod(0o755)
    return bin_dir


def test_starter_killed_during_the_first_start(data_dir, new_user, machine, notes, eventually):
    user = new_user()
    eventually(lambda: list(data_dir.glob("pgdata.draft-*")))
    user.kill()
    with embedded.start(data_dir) as server:
        notes.write(server.url, "one")
