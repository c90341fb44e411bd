"""The database of a world: a primary, and the standby and pooler of the stage."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg

from faults.postgres import Postgres, Programs, free_port
from faults.processes import Child
from faults.stage import Stage

POOLER = """
[databases]
* = host=127.0.0.1 port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
server_login_retry = 1
"""


class Clock:
    """A separate clock for some processes, by libfaketime. It does not change monotonic time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0.0
        self.set(0)

    def set(self, offset: float) -> None:
        self.offset = offset
        draft = self._path.with_suffix(".draft")
        draft.write_text(f"{offset:+.0f}\n")
        draft.chmod(0o644)
        draft.replace(self._path)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(find_libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


def find_libfaketime() -> Path | None:
    return next((path for path in sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))), None)


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def missing(stage: Stage) -> str | None:
    """Return a requirement of a stage that this machine does not have."""
    if stage.clocks and find_libfaketime() is None:
        return "libfaketime (Debian: apt-get install libfaketime)"
    if stage.pooled and find_pgbouncer() is None:
        return "PgBouncer (Debian: apt-get install pgbouncer)"
    if stage.disk_mb and os.geteuid() != 0:
        return "the right to mount a small file system (run it as root)"
    return None


class PgBouncer(Child):
    """PgBouncer in transaction mode, between all clients and the primary."""

    def __init__(self, programs: Programs, home: Path, directory: Path, primary: Postgres) -> None:
        super().__init__("pgbouncer", directory / "pgbouncer.log")
        self.port = free_port()
        self._account = programs.account
        self._file = home / "pgbouncer.ini"
        self._file.write_text(POOLER.format(port=primary.port, own_port=self.port))
        self._file.chmod(0o644)

    def command(self) -> list[str]:
        user = ["-u", self._account.name] if self._account else []
        return [str(find_pgbouncer()), "--quiet", *user, str(self._file)]


class Cluster:
    """The PostgreSQL servers of a world. The methods block: call them in a thread."""

    def __init__(self, directory: Path, home: Path, stage: Stage, clock: Mapping[str, str]) -> None:
        self._directory, self._home, self._stage, self._clock = directory, home, stage, clock
        self._programs = Programs(home)
        self._count = 0
        self.disk = home / "disk"
        self.primary = self._new()
        self.standby: Postgres | None = None
        self.old: Postgres | None = None  # the former primary, which still runs
        self.pooler = PgBouncer(self._programs, home, directory, self.primary) if stage.pooled else None

    def _new(self) -> Postgres:
        self._count += 1
        home = self.disk if self._stage.disk_mb else self._home
        log = self._directory / f"postgres-{self._count}.log"
        return Postgres(self._programs, home, f"postgres-{self._count}", self._clock, log)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self.pooler.port if self.pooler else self.primary.port

    def create(self) -> None:
        if self._stage.disk_mb:
            self.disk.mkdir()
            options = f"size={self._stage.disk_mb}m,mode=711"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "skep-faults", str(self.disk)], check=True)
        self.primary.create(self._stage.settings)
        if self.pooler:
            self.pooler.start()

    def add_standby(self, port: int | None) -> None:
        """Add a standby to the primary. With a synchronous standby commits wait until both have them."""
        self.standby = self._new()
        self.standby.follow(self.primary, port)
        if self._stage.standby == "synchronous":
            with psycopg.connect(self.primary.url(), autocommit=True) as db:
                db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                db.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Promote the standby, while the old primary still runs."""
        assert self.standby is not None
        self.standby.promote()
        self.old, self.primary, self.standby = self.primary, self.standby, None

    def end_old(self) -> None:
        if self.old is not None:
            self.old.stop("immediate")
            shutil.rmtree(self.old.data)
            self.old = None

    def all(self) -> Iterator[Postgres]:
        return (each for each in (self.primary, self.standby, self.old) if each is not None)

    def close(self) -> None:
        if self.pooler:
            self.pooler.wanted = False
            self.pooler.kill()
        for each in self.all():
            each.stop("immediate")
        if self._stage.disk_mb:
            with contextlib.suppress(subprocess.CalledProcessError):
                subprocess.run(["umount", "--lazy", str(self.disk)], check=True)
