"""Data directories that PostgreSQL's user can access, processes that use them, and their process trees."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from skep.embedded.locks import could_lock

DEADLINE_SECONDS = 30.0

_USER_SCRIPT = """
import sys
from pathlib import Path
from skep import embedded
bin_dir = Path(sys.argv[2]) if sys.argv[2] else None
server = embedded.start(Path(sys.argv[1]), bin_dir=bin_dir)
print(server.url, flush=True)
sys.stdin.readline()
server.stop()
print("stopped", flush=True)
sys.stdin.readline()
"""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {DEADLINE_SECONDS:.0f} seconds: {condition}")
        time.sleep(0.01)


class User:
    """Another process that starts the server at once, and stops it when the test says so."""

    def __init__(self, data_dir: Path, bin_dir: Path | None = None) -> None:
        command = [sys.executable, "-c", _USER_SCRIPT, str(data_dir), str(bin_dir or "")]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def url(self) -> str:
        return self._read()

    def stop(self) -> None:
        self._say()
        assert self._read() == "stopped"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()

    def _say(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


class Machine:
    """The processes of the server of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def postmaster(self) -> int:
        """Return the process id of PostgreSQL, or 0 if it is not running."""
        try:
            return int((self.data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def supervisors(self) -> list[int]:
        marks = [b"skep.embedded", os.fsencode(self.data_dir)]
        return [pid for pid in _processes() if [part for part in _command_line(pid) if part in marks] == marks]

    def supervisor(self) -> int:
        wait_for(lambda: len(self.supervisors()) == 1)
        return self.supervisors()[0]

    def family(self) -> list[int]:
        """Return the supervisor and all processes below it."""
        members = [self.supervisor()]
        parents = {pid: _parent(pid) for pid in _processes()}
        for member in members:
            members += [pid for pid, parent in parents.items() if parent == member]
        return members

    def kill_everything(self) -> None:
        """Kill all processes at once: the supervisor cannot restart PostgreSQL, and PostgreSQL cannot stop cleanly."""
        supervisor, *others = self.family()
        os.kill(supervisor, signal.SIGSTOP)
        for pid in (*others, supervisor):
            with contextlib.suppress(ProcessLookupError):  # workers of PostgreSQL may end meanwhile
                os.kill(pid, signal.SIGKILL)

    def supervisor_is_gone(self) -> bool:
        return could_lock(self.data_dir / "supervisor.lock", fcntl.LOCK_SH)

    def is_down(self) -> bool:
        return self.supervisor_is_gone() and could_lock(self.data_dir / "server.lock", fcntl.LOCK_SH)

    def wait_until_down(self) -> None:
        wait_for(self.is_down)

    def log(self) -> str:
        return (self.data_dir / "postgres.log").read_text()


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _end(data_dir: Path) -> None:
    """End all processes that a test left running."""
    machine = Machine(data_dir)
    for pid in machine.supervisors():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    machine.wait_until_down()


@contextlib.contextmanager
def _open_directory() -> Iterator[Path]:
    # The directory of pytest is not accessible to other users, and its path is too long for a socket.
    directory = Path(tempfile.mkdtemp(prefix="skep-", dir="/tmp")).resolve()
    directory.chmod(0o755)
    yield directory
    for lock in directory.rglob("users.lock"):
        _end(lock.parent)
    shutil.rmtree(directory)


@pytest.fixture
def base() -> Iterator[Path]:
    """Return a directory with a short name that every user can access."""
    with _open_directory() as directory:
        yield directory


@pytest.fixture
def data_dir(base: Path) -> Path:
    """Return the path of a data directory that does not exist yet."""
    return base / "data"


@pytest.fixture(scope="session")
def kept() -> Iterator[Path]:
    with _open_directory() as directory:
        embedded.start(directory / "data").stop()
        yield directory / "data"


@pytest.fixture
def made(data_dir: Path, kept: Path) -> Iterator[None]:
    """Return an existing data directory: a first start takes five times as long as a later one."""
    for file in ("postgres.log", "supervisor.log"):
        (kept / file).unlink(missing_ok=True)
    kept.rename(data_dir)
    yield
    _end(data_dir)
    data_dir.rename(kept)


@pytest.fixture
def machine(data_dir: Path) -> Machine:
    return Machine(data_dir)


@pytest.fixture
def new_user(data_dir: Path, base: Path) -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def create(bin_dir: Path | None = None) -> User:
        users.append(User(data_dir, bin_dir))
        return users[-1]

    yield create
    for user in users:
        user.close()


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    return wait_for


class Notes:
    """A table whose rows must survive."""

    def write(self, url: str, note: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE IF EXISTS notes")  # of an earlier test
            connection.execute("CREATE TABLE notes (note text)")
            connection.execute("INSERT INTO notes VALUES (%s)", [note])

    def read(self, url: str) -> list[str]:
        with psycopg.connect(url) as connection:
            return [row[0] for row in connection.execute("SELECT note FROM notes ORDER BY note").fetchall()]

    def responds(self, url: str) -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture
def notes() -> Notes:
    return Notes()
