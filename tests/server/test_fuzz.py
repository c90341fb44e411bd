"""Whatever is sent, the server is never at fault."""

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import inspect

from skep.server.http.endpoint import Endpoint
from skep.server.routes import ENDPOINTS
from tests.server.serving import serving

REQUESTS = 1500
SOMEWHERE = "00000000-0000-8001-bfff-ffffffffffff"
TEXTS = [
    "", "x", "q", "a\0b", "\ufffe", "'; --", "🐝", "x" * 256, SOMEWHERE, "completed", "retry", "dlq", "now", "-1",
    "1e9", "true", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59",
]  # fmt: skip
NUMBERS = [0, 1, -1, 1.5, 2**31, 2**63, 1e300, 10**400]
REST = [None, True, [], {}, {"q": 1}, {"a\0b": 1}, [[[[1]]]], ["a\0b"]]
OPTIONS = [
    "leaseTime", "retryLimit", "retryDelay", "maxSize", "priority", "delayedProcessing", "windowBuffer", "ttl",
    "retentionEnabled", "retentionSeconds", "completedRetentionSeconds", "encryptionEnabled", "maxWaitTimeSeconds",
]  # fmt: skip


class Fuzz:
    """Makes requests that are almost right; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._makers: dict[type[inspect.Type], Callable[[Any], Any]] = {
            inspect.StructType: self._struct,
            inspect.ListType: lambda kind: [self.value(kind.item_type) for _ in range(self._random.randint(0, 3))],
            inspect.DictType: lambda _: {self._random.choice(OPTIONS): self.junk() for _ in range(3)},
            inspect.UnionType: lambda kind: self.value(self._random.choice(kind.types)),
            inspect.LiteralType: lambda kind: self._random.choice(kind.values),
            inspect.StrType: lambda _: self._random.choice(TEXTS),
            inspect.FloatType: lambda _: self._random.choice(NUMBERS),
            inspect.IntType: lambda _: self._random.choice(NUMBERS),
            inspect.BoolType: lambda _: self._random.choice([True, False]),
        }

    def junk(self) -> Any:
        return self._random.choice(self._random.choice([TEXTS, NUMBERS, REST]))

    def value(self, kind: inspect.Type) -> Any:
        maker = self._makers.get(type(kind))
        return self.junk() if maker is None or self._random.random() < 0.1 else maker(kind)

    def _struct(self, kind: inspect.StructType) -> dict[str, Any]:
        tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
        wanted = (field for field in kind.fields if field.required or self._random.random() < 0.5)
        return tag | {field.encode_name: self.value(field.type) for field in wanted}

    def request(self) -> tuple[str, str, bytes]:
        endpoint: Endpoint = self._random.choice(ENDPOINTS)
        segments = (
            quote(self._random.choice(TEXTS), safe="") if segment.startswith("{") else segment
            for segment in endpoint.path.split("/")
        )
        some = (param.name for param in endpoint.query if self._random.random() < 0.3)
        query = {"timeout": "1"} | {name: self._random.choice(TEXTS) for name in some if name != "timeout"}
        body = self.junk() if endpoint.body is None else self.value(inspect.type_info(endpoint.body))
        return endpoint.method, f"{'/'.join(segments)}?{urlencode(query)}", json.dumps(body).encode()


def test_the_server_is_never_at_fault(database_url: str):
    fuzz = Fuzz(6632)
    statuses: set[int] = set()
    with (
        serving(database_url, encryption_keys=f"k1:{'ab' * 32}") as client,
        closing(http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)) as connection,
    ):
        for _ in range(REQUESTS):
            request = fuzz.request()
            connection.request(*request)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status < 500, (request, content)
            statuses.add(answer.status)
        assert {200, 201, 400, 404} <= statuses
        assert client.get("/health").status == 200
