"""A real PgBouncer in front of the test server, in transaction mode, which shares sessions."""

import configparser
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from skep.embedded.account import server_account
from tests.engine.threads import until

DEPLOYED = Path(__file__).parents[2] / "deploy/pgbouncer.ini"


def require() -> str:
    """Return the program. Without it skip the test, or fail it if SKEP_TEST_ALL=1."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is not None:
        return program
    if os.environ.get("SKEP_TEST_ALL") == "1":
        pytest.fail("no PgBouncer here, and SKEP_TEST_ALL=1")
    pytest.skip("no PgBouncer here (Debian: apt-get install pgbouncer)")


@contextlib.contextmanager
def pgbouncer(server_url: str) -> Generator[str]:
    """Run PgBouncer and yield its URL, with a new user who has all rights of Skep."""
    program = require()
    with _user(server_url) as (name, password):
        directory = Path(tempfile.mkdtemp(prefix="skep-pgbouncer-"))
        try:
            with _running(program, directory, server_url, name, password) as port:
                yield make_conninfo(host="127.0.0.1", port=port, user=name, password=password)
        finally:
            shutil.rmtree(directory)


@contextlib.contextmanager
def _user(server_url: str) -> Generator[tuple[str, str]]:
    name, password = f"skep_pooled_{os.getpid()}", os.urandom(8).hex()
    create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE skep_admin")
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(create.format(sql.Identifier(name), sql.Literal(password)))
        yield name, password
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@contextlib.contextmanager
def _running(program: str, directory: Path, server_url: str, name: str, password: str) -> Generator[int]:
    port = _free_port()
    server = {"host": "127.0.0.1", "port": 5432, **conninfo_to_dict(server_url)}
    own = {"listen_port": port, "auth_file": directory / "users.txt", "admin_users": name, "unix_socket_dir": ""}
    # Two server connections for all clients, so that a client soon gets a session that another one has used.
    _configure(directory / "pgbouncer.ini", f"host={server['host']} port={server['port']}", default_pool_size=2, **own)
    (directory / "users.txt").write_text(f'"{name}" "{password}"\n')
    command = [program, "--quiet", str(directory / "pgbouncer.ini")]
    account = server_account(directory)  # it does not run as root
    if account:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, account.uid, account.gid)
    user, group = (account.uid, account.gid) if account else (None, None)
    with (directory / "log").open("wb") as log:
        extra: list[int] | None = [] if account else None
        process = subprocess.Popen(command, stdout=log, stderr=log, user=user, group=group, extra_groups=extra)
    try:
        until(lambda: _answers(port) or process.poll() is not None, "PgBouncer to come up")
        assert process.poll() is None, (directory / "log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


def _configure(path: Path, server: str, **settings: object) -> None:
    """Write the configuration from `deploy`, adapted to the test."""
    configuration = configparser.ConfigParser(interpolation=None)
    configuration.read(DEPLOYED)
    configuration["databases"] = {"*": server}
    configuration["pgbouncer"].update({name: str(value) for name, value in settings.items()})
    with path.open("w") as file:
        configuration.write(file)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
