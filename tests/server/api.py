"""The application in this process, on a port of its own, and calls to it."""

import http.client
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from skep.config import Config
from skep.server.app import App
from skep.server.run import Server, listen

SECONDS_TO_START = 15
PREFIX = "/api/v1/"


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any


@dataclass(frozen=True)
class Api:
    """Calls to a server. Paths are below /api/v1; a call that is not to succeed says which status it expects."""

    host: str
    port: int
    headers: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        target = (path if path.startswith("/") else PREFIX + path) + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(method, target, None if body is None else json.dumps(body), self.headers)
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        return Answer(response.status, json.loads(raw) if raw else None)

    def _expected(self, status: int, answer: Answer) -> Any:
        assert answer.status == status, answer
        return answer.body

    def get(self, path: str, *, expect: int = 200, **query: Any) -> Any:
        return self._expected(expect, self.call("GET", path, **query))

    def post(self, path: str, body: Any = None, *, expect: int = 200) -> Any:
        return self._expected(expect, self.call("POST", path, body))

    def delete(self, path: str, *, expect: int = 200, **query: Any) -> Any:
        return self._expected(expect, self.call("DELETE", path, **query))

    # ---- what tests do before they look ----

    def push(self, queue: str, *payloads: Any, partition: str = "Default", ids: list[str] | None = None) -> list[Any]:
        names = [{"transactionId": name} for name in ids] if ids else [{}] * len(payloads)
        items = [
            {"queue": queue, "partition": partition, "payload": payload} | name
            for payload, name in zip(payloads, names, strict=True)
        ]
        return self.post("push", {"items": items}, expect=201)

    def pop(self, queue: str, group: str | None = None, *, batch: int = 100, **query: Any) -> list[Any]:
        named = {"consumerGroup": group} if group else {}
        return self.get(f"pop/queue/{quote(queue, safe='')}", batch=batch, partitions=100, **named, **query)["messages"]

    def ack(self, messages: list[Any], status: str = "completed", error: str | None = None) -> None:
        for message in messages:
            named = {name: message[name] for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
            (verdict,) = self.post("ack", named | {"status": status, "error": error})
            assert verdict["success"], verdict

    def take(self, queue: str, group: str | None = None, **query: Any) -> list[Any]:
        messages = self.pop(queue, group, **query)
        self.ack(messages)
        return [message["data"] for message in messages]


@contextmanager
def running(url: str, **settings: Any) -> Generator[Api]:
    """Serve a database from a thread."""
    config = Config(database_url=url, port=0, **settings)
    with listen(config) as listening:
        server = Server(App(config), config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            deadline = time.monotonic() + SECONDS_TO_START
            while not server.started:
                assert thread.is_alive()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield Api(*listening.getsockname())
        finally:
            server.should_exit = True
            thread.join()
