"""An embedded PostgreSQL of a test's own that can be killed; its supervisor starts it again by itself."""

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

# A server that is killed loses nothing that it has confirmed; the machine goes on, so nothing waits for the disk.
SETTINGS = {"fsync": "off", "shared_preload_libraries": "", "max_connections": "100"}


class Server:
    """An embedded PostgreSQL of these tests' own, and what can happen to it."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self.data_dir, self.url = data_dir, url

    def end(self, how: signal.Signals) -> int:
        """SIGINT is the clean shutdown of PostgreSQL, SIGKILL is none; returns who it was."""
        postmaster = self._postmaster()
        os.kill(postmaster, how)
        return postmaster

    def restart(self, how: signal.Signals) -> None:
        """End it and wait until it is back."""
        before = self.end(how)
        until(lambda: self._postmaster() not in (0, before) and self._answers(), "the supervisor to start it again")

    def _postmaster(self) -> int:
        try:
            return int((self.data_dir / "pgdata" / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running() -> Generator[Server]:
    """Run a server with Skep in it."""
    data_dir = Path(tempfile.mkdtemp(prefix="skep-test-"))
    with embedded.start(data_dir, settings=SETTINGS) as started:
        install(started.url)
        yield Server(data_dir, started.url)
    shutil.rmtree(data_dir)
