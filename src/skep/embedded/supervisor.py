"""The parent process of PostgreSQL. It keeps it running until the last process that uses it has ended."""

import fcntl
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skep.embedded import binaries, cluster
from skep.embedded.account import server_account
from skep.embedded.locks import POLL_SECONDS, open_lock, try_lock
from skep.embedded.orphans import end_orphans
from skep.embedded.postmaster import Postmaster, free_port, is_free
from skep.embedded.state import StateDir, tail
from skep.errors import EmbeddedError

if TYPE_CHECKING:
    import subprocess

_PORT_ATTEMPTS = 5
_PREDECESSOR_SECONDS = 60.0
_ORPHAN_SECONDS = 2.0  # an idle backend ends within 0.1 seconds
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_STABLE_SECONDS = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """The options of the process that starts the server."""

    bin_dir: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Launch":
        return cls(**json.loads(text))


def detach(state: StateDir, launch: Launch) -> None:
    """Run the supervisor in a detached child process. The parent returns when the child has its lock."""
    lock = open_lock(state.supervisor_lock)
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits at most for a failed supervisor that is about to end
    if os.fork() != 0:
        return
    Supervisor(state).run(launch)


class Supervisor:
    """Runs in the main thread, because the death signal depends on the thread that starts the program."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._record = replace(state.read_record(), ready=False, failure=None)
        self._starting = threading.Lock()
        self._unused = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, launch: Launch) -> None:
        threading.Thread(target=self._await_last_user, daemon=True).start()
        try:
            postmaster = self._prepare(launch)
            self._start(postmaster)
        except (EmbeddedError, OSError) as error:
            logger.exception("the server could not be started")
            self._update_record(failure=str(error))
            return
        self._keep_running(postmaster)
        self._update_record(ready=False)
        os.close(self._lock_server())  # after its last process has ended
        logger.info("the server is stopped, because no process uses it any more")

    def _await_last_user(self) -> None:
        """Lock the users lock when no process shares it any more, and keep it: a new start() waits for the end."""
        fcntl.flock(open_lock(self._state.users_lock), fcntl.LOCK_EX)
        with self._starting:
            self._unused.set()
            if self._process is not None:
                self._process.send_signal(signal.SIGINT)

    def _prepare(self, launch: Launch) -> Postmaster:
        state = self._state
        account = server_account(state.pgdata)
        found = binaries.find(Path(launch.bin_dir) if launch.bin_dir else None, state.major())
        programs = binaries.accessible(found, account, state.binaries)
        cluster.ensure_cluster(state, programs, account)
        settings = cluster.supported(launch.settings, state, programs, account)
        return Postmaster(state, programs, account, settings)

    def _start(self, postmaster: Postmaster) -> None:
        """Start PostgreSQL for the first time. A failure is final, unless another program took the port."""
        log_start = _size(self._state.postgres_log)
        for _ in range(_PORT_ATTEMPTS):
            self._update_record(port=free_port(self._record.port))
            if self._launch(postmaster) or self._unused.is_set():
                return
            if is_free(self._record.port):
                break
        raise EmbeddedError(f"PostgreSQL could not be started:\n{tail(self._state.postgres_log, log_start)}")

    def _keep_running(self, postmaster: Postmaster) -> None:
        pause = _FIRST_PAUSE
        while self._process is not None:
            since = time.monotonic()
            code = self._process.wait()
            if self._unused.is_set():
                return
            pause = _FIRST_PAUSE if time.monotonic() - since > _STABLE_SECONDS else min(2 * pause, _LONGEST_PAUSE)
            logger.warning("PostgreSQL ended with exit code %s; restarting it in %.1f seconds", code, pause)
            self._update_record(ready=False)
            if self._unused.wait(pause):
                return
            self._relaunch(postmaster)

    def _relaunch(self, postmaster: Postmaster) -> None:
        """Restart PostgreSQL. A failure is not final while a process uses it."""
        try:
            self._launch(postmaster)
        except (EmbeddedError, OSError):
            logger.exception("the server could not be restarted")

    def _launch(self, postmaster: Postmaster) -> bool:
        """Start PostgreSQL and return whether it accepts connections."""
        lock = self._lock_server()
        try:
            with self._starting:
                if self._unused.is_set():
                    return False
                self._process = postmaster.launch(self._record.port, lock)
        finally:
            os.close(lock)  # PostgreSQL has inherited it
        self._update_record(postmaster=self._process.pid)
        ready = postmaster.await_ready(self._process)
        self._update_record(ready=ready)
        return ready

    def _lock_server(self) -> int:
        """Wait until all processes of an earlier server have ended, and lock the server lock."""
        lock = open_lock(self._state.server_lock)
        since = time.monotonic()
        while not try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() - since > _PREDECESSOR_SECONDS:
                os.close(lock)
                raise EmbeddedError(f"processes of an earlier server are still running on {self._state.pgdata}")
            if time.monotonic() - since > _ORPHAN_SECONDS:
                end_orphans(self._state.server_lock, self._record.postmaster)
            time.sleep(POLL_SECONDS)
        return lock

    def _update_record(self, **changes: int | bool | str) -> None:
        self._record = replace(self._record, **changes)
        self._state.write_record(self._record)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
