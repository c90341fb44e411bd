"""Start, use and stop the server of a data directory."""

import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from skep.embedded.cluster import DATABASE, ROLE
from skep.embedded.locks import POLL_SECONDS, could_lock, exclusive, lock_within, open_lock
from skep.embedded.state import ServerRecord, StateDir, default_data_dir, tail
from skep.embedded.supervisor import Launch
from skep.errors import EmbeddedError

_READY_SECONDS = 300.0  # recovery after a crash may replay a lot
_STOP_SECONDS = 60.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Use:
    """The use of a data directory by this process: the shared lock, and the calls of start() without a stop()."""

    lock: int
    holders: set[object] = field(default_factory=set[object])


_uses: dict[Path, _Use] = {}
# Reentrant, and locked during a fork: a child must inherit neither an incomplete `_Use` nor a locked mutex. The child
# inherits the shared locks, so the server runs until the child has stopped or ended, too.
_mutex = threading.RLock()
os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_mutex.release)


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    """A running server. It runs until the last process that uses it has stopped or ended."""

    url: str = field(repr=False)  # contains the password
    data_dir: Path
    _token: object = field(repr=False, compare=False)

    def stop(self) -> None:
        """Stop using the server. If no other process uses it, wait until it is down."""
        with _mutex:
            use = _uses.get(self.data_dir)
            if use is None or self._token not in use.holders:
                return
            use.holders.remove(self._token)
            if use.holders:
                return
            _leave(self.data_dir)
        _await_end(StateDir(self.data_dir))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    data_dir: Path | None = None, *, settings: Mapping[str, str] | None = None, bin_dir: Path | None = None
) -> EmbeddedPostgres:
    """Use the server of a data directory: attach to it, or start it if it is not running.

    `settings` (of postgresql.conf) and `bin_dir` (the directory of PostgreSQL's programs) have an effect only if this
    call starts it. A setting that this PostgreSQL does not support is skipped, with a warning in the supervisor's log.
    """
    state = StateDir.at(data_dir or default_data_dir())
    state.prepare()
    launch = Launch(str(Path(bin_dir).absolute()) if bin_dir else None, dict(settings or {}))
    with _mutex, _using(state) as use:
        record = _attach_or_launch(state, launch)
        token = object()
        server = EmbeddedPostgres(_url(state, record.port), state.root, token)
        use.holders.add(token)
    return server


def running_url(data_dir: Path | None = None) -> str | None:
    """Return the URL of the server of a data directory if it is running. This does not keep it running."""
    state = StateDir.at(data_dir or default_data_dir())
    if not os.access(state.supervisor_lock, os.R_OK | os.W_OK) or not _supervisor_runs(state):
        return None
    record = state.read_record()
    return _url(state, record.port) if record.ready else None


@contextmanager
def _using(state: StateDir) -> Generator[_Use]:
    """Share the users lock. Unlock it if the start fails and this process does not use the server otherwise."""
    use = _uses.get(state.root) or _enter(state)
    try:
        yield use
    finally:
        if not use.holders:
            _leave(state.root)


def _enter(state: StateDir) -> _Use:
    lock = open_lock(state.users_lock)
    if not lock_within(lock, fcntl.LOCK_SH, _STOP_SECONDS):
        os.close(lock)
        raise EmbeddedError(f"the server in {state.root} has been shutting down for {_STOP_SECONDS:.0f} seconds")
    return _uses.setdefault(state.root, _Use(lock))


def _leave(data_dir: Path) -> None:
    # Closed, not unlocked: a forked child shares the lock and may still use the server.
    os.close(_uses.pop(data_dir).lock)


def _attach_or_launch(state: StateDir, launch: Launch) -> ServerRecord:
    with exclusive(state.start_lock, _READY_SECONDS):
        if _supervisor_runs(state) and (record := _await_ready(state)) is not None and record.ready:
            return record
        _launch_supervisor(state, launch)
        record = _await_ready(state)
    if record is None:
        raise EmbeddedError(f"the supervisor of PostgreSQL ended:\n{tail(state.supervisor_log)}")
    if record.failure is not None:
        raise EmbeddedError(record.failure)
    return record


def _await_ready(state: StateDir) -> ServerRecord | None:
    """Return the record when it is ready or failed, or None if the supervisor has ended without either."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        alive = _supervisor_runs(state)  # read before the record, because the supervisor writes it and then ends
        record = state.read_record()
        if record.failure is not None or (record.ready and alive):
            return record
        if not alive:
            return None
        time.sleep(POLL_SECONDS)
    raise EmbeddedError(f"PostgreSQL was not ready after {_READY_SECONDS:.0f} seconds:\n{tail(state.postgres_log)}")


def _launch_supervisor(state: StateDir, launch: Launch) -> None:
    # A killed supervisor may have left a record with `ready`.
    state.write_record(ServerRecord(state.read_record().port, state.read_record().postmaster))
    state.supervisor_log.touch(mode=0o600)
    command = [sys.executable, "-P", "-m", "skep.embedded", str(state.root), launch.to_json()]
    # It imports Skep from the same place, and nothing from the current directory.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
    with state.supervisor_log.open("ab") as log:
        _run_detached(command, environment, log)


def _run_detached(command: list[str], environment: dict[str, str], log: IO[bytes]) -> None:
    """Run the supervisor. Return when it has its lock or has failed."""
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise EmbeddedError(f"cannot run the supervisor of PostgreSQL: {error}") from error


def _supervisor_runs(state: StateDir) -> bool:
    return not could_lock(state.supervisor_lock, fcntl.LOCK_SH)


def _url(state: StateDir, port: int) -> str:
    try:
        password = state.password.read_text()
    except OSError as error:
        raise EmbeddedError(f"cannot read the password of the server: {error}") from error
    return f"postgresql://{ROLE}:{password}@127.0.0.1:{port}/{DATABASE}"


def _await_end(state: StateDir) -> None:
    """Wait until the server is down, unless another process uses it."""
    deadline = time.monotonic() + _STOP_SECONDS
    while not _is_down(state) and not _is_used(state):
        if time.monotonic() > deadline:
            logger.warning("the server in %s is still shutting down", state.root)
            return
        time.sleep(POLL_SECONDS)


def _is_down(state: StateDir) -> bool:
    return not _supervisor_runs(state) and could_lock(state.server_lock, fcntl.LOCK_SH)


def _is_used(state: StateDir) -> bool:
    """Return whether another process shares the users lock: it can be shared, but not locked exclusively.

    One process at a time may check, otherwise two leaving processes would each take the other for a user.
    """
    with exclusive(state.leave_lock, _STOP_SECONDS):
        unused = could_lock(state.users_lock, fcntl.LOCK_EX)
        return not unused and could_lock(state.users_lock, fcntl.LOCK_SH)
