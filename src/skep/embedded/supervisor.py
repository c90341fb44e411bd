"""The parent of PostgreSQL: keeps it running while anyone uses it, stops it when nobody does."""

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
_ORPHAN_SECONDS = 2.0  # an idle backend is gone in a tenth of one
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_STABLE_SECONDS = 30.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the process that starts the server asks for."""

    bin_dir: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Launch":
        return cls(**json.loads(text))


def detach(state: StateDir, launch: Launch) -> None:
    """Become the supervisor in a child that nobody waits for. The parent returns once the child has its lock."""
    lock = open_lock(state.supervisor_lock)
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits, at most, for one that has failed and is about to end
    if os.fork() != 0:
        return
    Supervisor(state).run(launch)


class Supervisor:
    """Runs in the main thread, because a death signal is tied to the thread that starts the program."""

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
            logger.exception("the server does not start")
            self._note(failure=str(error))
            return
        self._keep_running(postmaster)
        self._note(ready=False)
        os.close(self._claim())  # the last of its processes is gone
        logger.info("nobody uses the server any more; it is stopped")

    def _await_last_user(self) -> None:
        """Get the lock that every user shares, and keep it to the end: who wants to start again waits for it."""
        fcntl.flock(open_lock(self._state.users_lock), fcntl.LOCK_EX)
        with self._starting:
            self._unused.set()
            if self._process is not None:
                self._process.send_signal(signal.SIGINT)

    def _prepare(self, launch: Launch) -> Postmaster:
        state = self._state
        account = server_account(state.pgdata)
        found = binaries.find(Path(launch.bin_dir) if launch.bin_dir else None, state.major())
        reached = binaries.within_reach(found, account, state.binaries)
        cluster.ensure_cluster(state, reached, account)
        settings = cluster.supported(launch.settings, state, reached, account)
        return Postmaster(state, reached, account, settings)

    def _start(self, postmaster: Postmaster) -> None:
        """Start it for the first time; a failure is final, unless someone else took the port."""
        log_start = _size(self._state.postgres_log)
        for _ in range(_PORT_ATTEMPTS):
            self._note(port=free_port(self._record.port))
            if self._launch(postmaster) or self._unused.is_set():
                return
            if is_free(self._record.port):
                break
        raise EmbeddedError(f"PostgreSQL does not start:\n{tail(self._state.postgres_log, log_start)}")

    def _keep_running(self, postmaster: Postmaster) -> None:
        pause = _FIRST_PAUSE
        while self._process is not None:
            since = time.monotonic()
            code = self._process.wait()
            if self._unused.is_set():
                return
            pause = _FIRST_PAUSE if time.monotonic() - since > _STABLE_SECONDS else min(2 * pause, _LONGEST_PAUSE)
            logger.warning("PostgreSQL ended with %s; starting it again in %.1f seconds", code, pause)
            self._note(ready=False)
            if self._unused.wait(pause):
                return
            self._relaunch(postmaster)

    def _relaunch(self, postmaster: Postmaster) -> None:
        """Start it again; while someone uses it, no failure is final."""
        try:
            self._launch(postmaster)
        except (EmbeddedError, OSError):
            logger.exception("the server does not start again")

    def _launch(self, postmaster: Postmaster) -> bool:
        """Run PostgreSQL and tell whether it takes connections."""
        lock = self._claim()
        try:
            with self._starting:
                if self._unused.is_set():
                    return False
                self._process = postmaster.launch(self._record.port, lock)
        finally:
            os.close(lock)  # PostgreSQL has its own copy
        self._note(postmaster=self._process.pid)
        ready = postmaster.await_ready(self._process)
        self._note(ready=ready)
        return ready

    def _claim(self) -> int:
        """Wait until every process of an earlier server is gone, and take its lock."""
        lock = open_lock(self._state.server_lock)
        since = time.monotonic()
        while not try_lock(lock, fcntl.LOCK_EX):
            if time.monotonic() - since > _PREDECESSOR_SECONDS:
                os.close(lock)
                raise EmbeddedError(f"processes of an earlier server still run on {self._state.pgdata}")
            if time.monotonic() - since > _ORPHAN_SECONDS:
                end_orphans(self._state.server_lock, self._record.postmaster)
            time.sleep(POLL_SECONDS)
        return lock

    def _note(self, **changes: int | bool | str) -> None:
        self._record = replace(self._record, **changes)
        self._state.write_record(self._record)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
