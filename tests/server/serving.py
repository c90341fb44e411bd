"""A server in a thread of the test's own process, and a client that says what it got."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from skep import DeadLetter, Skep
from skep.config import Config
from skep.server.http.app import App
from skep.server.routes import ENDPOINTS
from skep.server.run import Server, listen
from skep.server.work import waiters


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Client:
    """Calls one server; each call is a connection of its own."""

    port: int
    app: App
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str] | None = None, **query: Any
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            connection.request(
                method,
                f"{path}?{urlencode(query)}" if query else path,
                raw,
                {**dict(self.headers), **(headers or {})},
            )
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())

    def get(self, path: str, **query: Any) -> Answer:
        return self.call("GET", path, **query)

    def post(self, path: str, body: object = None, **options: Any) -> Answer:
        return self.call("POST", path, body, **options)

    def parked(self) -> int:
        return sum(self.app.state.waiting_by_queue().values())

    def dead_letters(self, queue: str) -> list[DeadLetter]:
        with Skep(self.app.config.database_url) as mq:
            return list(mq.dead_letters(queue))

    def push(self, queue: str, *payloads: Any, partition: str = "Default", **fields: Any) -> list[dict[str, Any]]:
        items = [{"queue": queue, "partition": partition, "payload": each, **fields} for each in payloads]
        answer = self.post("/api/v1/push", {"items": items})
        assert answer.status == 201, answer.body
        return answer.json

    def pop(self, queue: str, **query: Any) -> list[dict[str, Any]]:
        answer = self.get(f"/api/v1/pop/queue/{quote(queue, safe='')}", **{"batch": 100, **query})
        assert answer.status in (200, 204), answer.body
        return answer.json["messages"] if answer.status == 200 else []


@contextlib.contextmanager
def serving(database_url: str, **settings: Any) -> Generator[Client]:
    """Serve this database until the end of the block."""
    config = Config(database_url=database_url, port=0, **settings)
    with listen(config) as listening:
        app = App(config, ENDPOINTS)
        server = Server(app, config)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until(lambda: server.started or not thread.is_alive())
        try:
            yield Client(listening.getsockname()[1], app)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    """Wait for a condition and return what it gave."""
    deadline = time.monotonic() + seconds
    while not (met := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return met


@pytest.fixture(scope="module")
def client(module_database_url: str) -> Generator[Client]:
    """A server for the module."""
    with serving(module_database_url) as running:
        yield running


@pytest.fixture
def quiet(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Client]:
    """A server that does not look by itself at what may be due: who waits is woken, or waits for ever."""
    monkeypatch.setattr(waiters, "POLL", 3600.0)
    with serving(database_url) as running:
        yield running


@pytest.fixture
def in_thread() -> Generator[Callable[..., Any]]:
    """Run something beside the test; what is returned is its future."""
    with ThreadPoolExecutor(16) as pool:
        yield pool.submit
