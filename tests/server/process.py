"""`skep serve` as a process of its own, with the end of its log when something goes wrong."""

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

SKEP = Path(sys.executable).with_name("skep")
SECONDS_TO_START = 30
SECONDS_TO_STOP = 15


@dataclass(frozen=True)
class Server:
    """A running server: where it listens, and what it wrote."""

    url: str
    log: Path

    def last_words(self) -> str:
        return self.log.read_text()[-6000:]


@contextlib.contextmanager
def serving(
    database_url: str, directory: Path, *, port: int | None = None, settings: Mapping[str, str] = MappingProxyType({})
) -> Generator[Server]:
    """Serve this database, on a free port; give the server once it is healthy, and stop it afterwards."""
    port = port or free_port()
    server = Server(f"http://127.0.0.1:{port}", directory / f"serve-{port}.log")
    command = [SKEP, "serve", "--database-url", database_url, "--port", str(port)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
    environ |= {f"SKEP_{name.upper()}": value for name, value in settings.items()}
    with server.log.open("a") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for_health(server, process)
        yield server
    finally:
        _stop(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _wait_for_health(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not _is_healthy(server.url):
        assert process.poll() is None, f"skep serve ended with {process.returncode}:\n{server.last_words()}"
        assert time.monotonic() < deadline, f"not healthy in {SECONDS_TO_START} s:\n{server.last_words()}"
        time.sleep(0.05)


def _is_healthy(url: str) -> bool:
    with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health") as answer:
        return answer.status == 200
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SECONDS_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
