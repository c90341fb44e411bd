"""`skep serve` as a process that can be killed."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.server.serving import until

SKEP = Path(sys.executable).with_name("skep")


class Serve:
    """A running server."""

    def __init__(
        self, database_url: str, log: Path, port: int, flags: tuple[str, ...], environ: dict[str, str]
    ) -> None:
        self.log = log
        self._said = log.open("w+")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SKEP_")}
        self.process = subprocess.Popen(
            [SKEP, "serve", "--port", str(port), *flags],
            env=clean | {"SKEP_DATABASE_URL": database_url} | environ,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )
        self.port = port or until(self._find_port, 30)
        until(self.is_ready, 30)

    def _find_port(self) -> int:
        assert self.process.poll() is None, self.log.read_text()
        _, _, after = self.log.read_text().partition("://localhost:")
        return int(after.split()[0]) if after else 0

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.call("GET", "/ready")[0] == 200
        return False

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Return status and answer; a connection that is cut raises OSError or HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")

    def push(self, queue: str, payload: Any) -> tuple[int, Any]:
        return self.call("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": payload}]})

    def pop(self, queue: str, query: str = "batch=1000") -> list[dict[str, Any]]:
        status, answer = self.call("GET", f"/api/v1/pop/queue/{queue}?{query}")
        assert status == 200, answer
        return answer["messages"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Ask it to stop, and return how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.terminate()
        self._said.close()


@contextlib.contextmanager
def killable(
    database_url: str, log: Path, *flags: str, port: int = 0, environ: dict[str, str] | None = None
) -> Generator[Serve]:
    """Serve until the end of the block, or the end of the process."""
    serve = Serve(database_url, log, port, flags, environ or {})
    try:
        yield serve
    finally:
        serve.close()
