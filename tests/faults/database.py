"""An embedded PostgreSQL that tests kill; its supervisor restarts it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from skep import embedded
from skep.engine.install import install
from tests.engine.threads import until

# Only the server is killed, not the machine, so fsync is not needed.
SETTINGS = {"fsync": "off", "shared_preload_libraries": "", "max_connections": "100"}


class Server:
    """An embedded PostgreSQL that can be stopped and restarted."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self.data_dir, self.url = data_dir, url

    def end(self, how: signal.Signals) -> int:
        """Stop the server: cleanly with SIGINT, or with SIGKILL. Return the pid of the postmaster."""
        postmaster = self._postmaster()
        os.kill(postmaster, how)
        return postmaster

    def restart(self, how: signal.Signals) -> None:
        """Stop the server and wait until it is ready again."""
        before = self.end(how)
        until(lambda: self._postmaster() not in (0, before) and self._is_ready(), "the supervisor to restart it")

    def _postmaster(self) -> int:
        try:
            return int((self.data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running() -> Generator[Server]:
    """Run a server with Skep installed."""
    data_dir = Path(tempfile.mkdtemp(prefix="skep-test-"))
    with embedded.start(data_dir, settings=SETTINGS) as started:
        install(started.url)
        yield Server(data_dir, started.url)
    shutil.rmtree(data_dir)
