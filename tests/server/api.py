"""Calls to the admin plane that say what they expect."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.server.serving import Answer, Client, serving

PREFIX = "/api/v1/"


@dataclass(frozen=True)
class Api:
    """Calls to a server. Paths are below /api/v1; a call that is not to succeed says which status it expects."""

    client: Client

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Answer:
        return self.client.call(method, path if path.startswith("/") else PREFIX + path, body, **query)

    def _expected(self, status: int, answer: Answer) -> Any:
        assert answer.status == status, answer
        return answer.json if answer.body else None

    def get(self, path: str, *, expect: int = 200, **query: Any) -> Any:
        return self._expected(expect, self.call("GET", path, **query))

    def post(self, path: str, body: Any = None, *, expect: int = 200) -> Any:
        return self._expected(expect, self.call("POST", path, body))

    def delete(self, path: str, *, expect: int = 200, **query: Any) -> Any:
        return self._expected(expect, self.call("DELETE", path, **query))

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
    with serving(url, **settings) as client:
        yield Api(client)
