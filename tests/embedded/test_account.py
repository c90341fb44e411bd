"""The user of PostgreSQL: never root, and any user can start a server."""

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from skep import embedded
from skep.embedded import account
from skep.errors import EmbeddedError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")

_SCRIPT = """
import psycopg
from skep import embedded
for note in ("one", "two"):
    with embedded.start() as server, psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS notes (note text)")
        connection.execute("INSERT INTO notes VALUES (%s)", [note])
        postmaster = int((server.data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
        with open(f"/proc/{postmaster}/status") as status:
            uid = next(line.split()[1] for line in status if line.startswith("Uid:"))
        print(connection.execute("SELECT count(*) FROM notes").fetchone()[0], uid, server.data_dir)
"""


@ROOT_ONLY
def test_root_runs_it_as_another_user(data_dir, machine):
    with embedded.start(data_dir):
        expected = account.server_account(data_dir / "pgdata")
        assert expected
        assert expected.name in ("postgres", "nobody")
        for pid in machine.family()[1:]:
            assert Path(f"/proc/{pid}").stat().st_uid == expected.uid
        groups = Path(f"/proc/{machine.postmaster()}/status").read_text().partition("Groups:")[2].split("\n")[0]
        assert groups.split() == []


@ROOT_ONLY
def test_root_runs_it_as_nobody_where_there_is_no_postgres(data_dir, machine, monkeypatch):
    nobody = pwd.getpwnam("nobody")
    data_dir.mkdir(mode=0o700)
    (data_dir / "pgdata").mkdir(mode=0o700)
    os.chown(data_dir / "pgdata", nobody.pw_uid, nobody.pw_gid)
    found = account.server_account(data_dir / "pgdata")
    assert found == account.Account("nobody", nobody.pw_uid, nobody.pw_gid)

    def only_nobody(name: str):
        if name != "nobody":
            raise KeyError(name)
        return nobody

    monkeypatch.setattr(pwd, "getpwnam", only_nobody)
    assert account.server_account(data_dir / "nothing") == found


@ROOT_ONLY
def test_root_may_use_an_empty_closed_directory(base, notes):
    directory = Path(tempfile.mkdtemp(dir=base))
    with embedded.start(directory) as server:
        assert notes.responds(server.url)


@ROOT_ONLY
def test_directory_without_access(base):
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match=f"has no access to {closed}; set SKEP_DATA_DIR"):
        embedded.start(closed / "data")
    assert closed.stat().st_mode & 0o777 == 0o700


@ROOT_ONLY
def test_directory_with_other_things_in_it_is_not_opened(base):
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    (closed / "diary").touch()
    with pytest.raises(EmbeddedError, match="has no access to"):
        embedded.start(closed)
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def nobody() -> account.Account:
    entry = pwd.getpwnam("nobody")
    return account.Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _python_for(user: account.Account) -> str:
    """Return our Python, or the system's if ours is in root's home and both have the same version."""
    for package in ("skep", "psycopg"):
        place = Path(str(sys.modules[package].__file__)).resolve().parent
        if wall := account.blocker(place, user):
            pytest.skip(f"{user.name} has no access to {wall}, so it cannot import {package}")
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        if Path(python).exists() and account.blocker(Path(python).resolve(), user) is None:
            return python
    pytest.skip(f"there is no {name} that {user.name} can run")


def _as(user: account.Account, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment |= {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [_python_for(user), "-c", _SCRIPT],
        user=user.uid,
        group=user.gid,
        extra_groups=[],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@ROOT_ONLY
def test_any_user_keeps_its_own_server_in_its_home(base, nobody):
    home = base / "home"
    home.mkdir(mode=0o700)
    os.chown(home, nobody.uid, nobody.gid)
    result = _as(nobody, home)
    place = home / ".local" / "share" / "skep"
    assert (result.stdout, result.stderr) == (f"1 {nobody.uid} {place}\n2 {nobody.uid} {place}\n", "")
    assert place.stat().st_mode & 0o777 == 0o700


@ROOT_ONLY
def test_directory_of_another_user(base, data_dir, nobody):
    with embedded.start(data_dir):
        result = _as(nobody, base, SKEP_DATA_DIR=str(data_dir))
    assert "EmbeddedError: cannot use" in result.stderr
    assert "belongs to another user" in result.stderr
