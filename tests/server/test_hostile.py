"""Requests that mean harm, or are just wrong: each is refused in words, and nobody else notices."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest

from skep.server.http.endpoint import Endpoint
from skep.server.queen.ack import QueenAcks
from skep.server.routes import ENDPOINTS
from tests.server.serving import Answer, Client, client, serving, until

__all__ = ["client"]

PUSH = "/api/v1/push"
POP = "/api/v1/pop/queue"
NUL = "a\0b"
DEEP = b"[" * 100_000 + b"]" * 100_000
NOWHERE = "00000000-0000-8000-8000-000000000000"
SQL = "'; DROP TABLE skep.messages; --"
BODIES = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


def path_of(endpoint: Endpoint) -> str:
    return "/".join(NOWHERE if part.startswith("{") else part for part in endpoint.path.split("/"))


def is_refusal(answer: Answer) -> bool:
    """Tell whether an answer is a clean error: the client's fault, and in words."""
    assert answer.headers["content-type"] == "application/json"
    return 400 <= answer.status < 500 and all(type(answer.json[name]) is str for name in ("error", "code"))


def push_raw(client: Client, payload: bytes) -> Answer:
    return client.post(PUSH, b'{"items":[{"queue":"raw","payload":%s}]}' % payload)


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


def stored(db: psycopg.Connection, queue: str) -> list[Any]:
    rows = db.execute(
        """SELECT m.payload FROM skep.messages m JOIN skep.partitions p ON p.id = m.partition_id
           JOIN skep.queues q ON q.id = p.queue_id WHERE q.name = %s ORDER BY m.payload""",
        [queue],
    )
    return [payload for (payload,) in rows]


@pytest.mark.parametrize("endpoint", BODIES, ids=name_of)
@pytest.mark.parametrize(
    "body",
    [b"{", b"[", b"hello", b"\0", b"null", b"[]", b"1", b'"x"', b"\xef\xbb\xbf{}", b"\xff\xfe", b"{} {}", b'{"a":1,}',
     b'{"\xff":1}x', b'{"a":"\\ud800"}', b'{"a":NaN}', DEEP, b"[" * 100_000, b'{"a":' * 100_000,
     b'{"items":' + DEEP + b"}"],
    ids=lambda body: repr(body[:14]),
)  # fmt: skip
def test_malformed_bodies(client: Client, endpoint: Endpoint, body: bytes):
    assert is_refusal(client.call(endpoint.method, path_of(endpoint), body))


@pytest.mark.parametrize("endpoint", [each for each in BODIES if each.body_required], ids=name_of)
def test_no_body(client: Client, endpoint: Endpoint):
    assert is_refusal(client.call(endpoint.method, path_of(endpoint), b""))


@pytest.mark.parametrize(
    "item",
    [{"queue": NUL}, {"partition": NUL}, {"transactionId": NUL}, {"traceId": NUL}, {"payload": NUL},
     {"payload": {NUL: 1}}, {"payload": [[{"a": NUL}]]}, {"headers": {"a": NUL}}, {"headers": {NUL: "a"}}],
    ids=str,
)  # fmt: skip
def test_nul_in_a_push(client: Client, queue: str, db: psycopg.Connection, item: dict[str, Any]):
    assert is_refusal(client.post(PUSH, {"items": [{"queue": queue}, {"queue": queue} | item]}))
    operation = {"type": "push", "items": [{"queue": queue}, {"queue": queue} | item]}
    answer = client.post("/api/v1/transaction", {"operations": [operation]})
    assert is_refusal(answer) or answer.json["success"] is False
    assert stored(db, queue) == []


@pytest.mark.parametrize("field", ["transactionId", "partitionId", "consumerGroup", "leaseId", "error", "status"])
def test_nul_in_an_answer(client: Client, field: str):
    answer = {"transactionId": "t", "partitionId": NOWHERE} | {field: NUL}
    (verdict,) = client.post("/api/v1/ack", answer).json
    assert verdict["success"] is False
    body = {"acknowledgments": [answer], "consumerGroup": answer.get("consumerGroup")}
    (verdict,) = client.post("/api/v1/ack/batch", body).json
    assert verdict["success"] is False
    done = client.post("/api/v1/transaction", {"operations": [answer | {"type": "ack"}]}).json
    assert (done["success"], done["reason"]) == (False, "ack_rejected")


@pytest.mark.parametrize("field", ["queue", "namespace", "task"])
def test_nul_in_a_configuration(client: Client, field: str):
    assert is_refusal(client.post("/api/v1/configure", {"queue": "q", field: NUL}))


@pytest.mark.parametrize(
    "path",
    [f"{POP}/a%00b", f"{POP}/a/partition/%00", f"{POP}/a?consumerGroup=%00", f"{POP}/a?subscriptionFrom=%00",
     "/api/v1/pop?namespace=%00", "/api/v1/pop?task=%00", f"{POP}/a?%00=1", f"{POP}/%ff", f"{POP}/%ed%a0%80",
     f"{POP}/a?consumerGroup=%ff", f"{POP}/a?consumerGroup=%ed%a0%80"],
)  # fmt: skip
def test_nul_and_what_is_not_utf8_in_a_path(client: Client, path: str):
    assert is_refusal(client.get(path))


@pytest.mark.parametrize(
    "payload",
    [b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'{"\xff":1}', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud800x"',
     b'"a\x01"', b"01", b"1.", b"+1", b"- 1", b"tru", b"NaN", b"'a'", b'"\\x"', b"[1,]", b"", b"1 2", b"1}],[{",
     b"1e200000", b"1e999999999", b"1e-200000", b"9" * 200_000, DEEP, b"[" * 100_000,
     b'{"a":' * 100_000 + b"1" + b"}" * 100_000],
    ids=lambda payload: repr(payload[:14]),
)  # fmt: skip
def test_payloads_that_are_no_json(client: Client, db: psycopg.Connection, payload: bytes):
    assert is_refusal(push_raw(client, payload))
    assert stored(db, "raw") == []


@pytest.mark.parametrize(
    ("payload", "back"),
    [(b"1e400", b"1" + b"0" * 400), (b"9" * 400, b"9" * 400), (b"-0", b"0"), (b"1E-400", b"0." + b"0" * 399 + b"1"),
     (b'{"a":1,"a":2}', b'{"a": 2}'), (b"[" * 900 + b"]" * 900, b"[" * 900 + b"]" * 900), (b'"\x7f"', b'"\x7f"'),
     (b'"\\ud83d\\ude00"', '"😀"'.encode())],
    ids=lambda payload: repr(payload[:14]),
)  # fmt: skip
def test_odd_payloads_come_back_as_they_were_meant(client: Client, payload: bytes, back: bytes):
    assert push_raw(client, payload).status == 201
    assert b'"data":%s,' % back in client.get(f"{POP}/raw?autoAck=true").body


def test_of_fields_that_are_there_twice_the_last_counts(client: Client, queue: str):
    body = b'{"items":[{"queue":"no"}],"items":[{"queue":"no","queue":"%s","payload":1,"payload":2}]}' % queue.encode()
    assert client.post(PUSH, body).status == 201
    assert [message["data"] for message in client.pop(queue)] == [2]


@pytest.mark.parametrize(
    "item",
    [{"queue": "x" * 256}, {"queue": ""}, {"partition": "x" * 256}, {"partition": ""}, {"transactionId": "x" * 256},
     {"traceId": "nope"}, {"traceId": f"{{{NOWHERE}}}"}, {"traceId": f"{NOWHERE}\n"}, {"headers": {"skep-sealed": {}}},
     {"headers": [1]}, {"queue": 1}, {"queue": None}, {"queue": ["a"]}],
    ids=lambda item: repr(item)[:30],
)  # fmt: skip
def test_items_that_are_refused(client: Client, queue: str, db: psycopg.Connection, item: dict[str, Any]):
    assert is_refusal(client.post(PUSH, {"items": [{"queue": queue}, {"queue": queue} | item]}))
    assert stored(db, queue) == []


def test_names_of_255_characters(client: Client):
    longest = "ß/%\n" * 63 + "abc"
    assert len(longest) == 255
    client.push(longest, 1, partition=longest, transactionId=longest)
    path = f"{POP}/{quote(longest, safe='')}/partition/{quote(longest, safe='')}"
    (message,) = client.get(path, consumerGroup=longest).json["messages"]
    assert [message[name] for name in ("queue", "partition", "transactionId", "consumerGroup")] == [longest] * 4


@pytest.mark.parametrize(
    "path",
    [f"{POP}/{'x' * 256}", f"{POP}/q/partition/{'x' * 256}", f"{POP}/q?consumerGroup={'x' * 256}",
     f"/api/v1/pop?namespace={'x' * 256}", f"{POP}/{'x' * 60_000}"],
    ids=len,
)  # fmt: skip
def test_names_that_are_too_long(client: Client, path: str):
    assert is_refusal(client.get(path))


def test_more_items_than_fit(module_database_url: str):
    with serving(module_database_url, max_batch=10) as client:
        assert client.post(PUSH, {"items": [{"queue": "q"}] * 11}).status == 413
        answer = {"transactionId": "t", "partitionId": NOWHERE}
        assert client.post("/api/v1/ack/batch", {"acknowledgments": [answer] * 11}).status == 413
        many = [{"type": "push", "items": [{"queue": "q"}] * 6}] * 2
        assert client.post("/api/v1/transaction", {"operations": many}).status == 413
        assert client.post("/api/v1/transaction", {"operations": [answer | {"type": "ack"}] * 11}).status == 413
        assert client.post(PUSH, {"items": [{"queue": "q"}] * 10}).status == 201


@pytest.mark.parametrize(
    "query",
    ["batch=1e9", f"batch={'9' * 5000}", "batch=-1", "partitions=0", "leaseSeconds=-5", "x" * 60_000],
    ids=lambda query: query[:40],
)  # fmt: skip
def test_queries_that_mean_nothing_are_none(client: Client, queue: str, query: str):
    client.push(queue, 1)
    answer = client.get(f"{POP}/{queue}?consumerGroup=g&{query}")
    assert [message["data"] for message in answer.json["messages"]] == [1]


@pytest.mark.parametrize(
    "query",
    ["leaseSeconds=604801", "leaseSeconds=99999999999", "conflation=true", "&a=1" * 101, "subscriptionFrom=-infinity",
     "subscriptionFrom=9999-12-31T23:59:59-23:59", "subscriptionFrom=0001-01-01T00:00:00%2B23:59",
     f"subscriptionMode={'x' * 5000}", f"consumerGroup=g&subscriptionMode=offset&subscriptionFrom={'9' * 5000}"],
    ids=lambda query: query[:40],
)  # fmt: skip
def test_queries_that_are_refused(client: Client, query: str):
    assert is_refusal(client.get(f"{POP}/q?{query}"))


@pytest.mark.parametrize(
    "path",
    ["//", "/health/", "/./health", "/x/../health", "/HEALTH", "/%68ealth", "/health%00", f"{POP}/a/", f"{POP}//",
     f"{POP}/a//partition/b", f"{POP}/../../health", "/a" * 20_000],
    ids=lambda path: path[:40],
)  # fmt: skip
def test_paths_that_are_no_routes(client: Client, path: str):
    answer = client.get(path)
    assert (answer.status, answer.json["code"]) == (404, "no_such_route")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "%2F", "%00", "a?b#c", "a b+c", SQL, "\r\nX-Evil: 1", "🐝"])
def test_names_are_names(client: Client, name: str):
    """A path is split before it is decoded, and decoded once."""
    client.push(name, 1)
    (message,) = client.pop(name, autoAck="true")
    assert message["queue"] == name
    assert client.call("DELETE", f"/api/v1/resources/queues/{quote(name, safe='')}").json["existed"] is True


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=name_of)
def test_wrong_methods(client: Client, endpoint: Endpoint):
    allowed = {each.method for each in ENDPOINTS if each.path == endpoint.path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"} - allowed:
        answer = client.call(method, path_of(endpoint))
        assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
        assert allowed <= set(answer.headers["allow"].split(", "))


def test_sql_and_headers_in_every_string(client: Client, db: psycopg.Connection):
    """Whatever is sent comes back as it was, inside the body."""
    evil = f"{SQL}\r\nX-Evil: 1\r\n\r\n"
    item = {"queue": evil, "partition": evil, "transactionId": evil, "payload": {evil: evil}, "headers": {evil: evil}}
    answers = [client.post(PUSH, {"items": [item]})]
    answers.append(client.get(f"{POP}/{quote(evil, safe='')}", consumerGroup=evil))
    (message,) = answers[-1].json["messages"]
    assert (message["data"], message["headers"]) == ({evil: evil}, {evil: evil})
    ack = {"transactionId": evil, "partitionId": message["partitionId"], "consumerGroup": evil, "error": evil}
    answers.append(client.post("/api/v1/ack", ack | {"status": "dlq"}))
    assert answers[-1].json[0]["dlq"] is True
    answers.append(client.post("/api/v1/configure", {"queue": evil, "namespace": evil, "task": evil}))
    answers.append(client.post(f"/api/v1/lease/{quote(evil, safe='')}/extend"))
    answers.append(client.call("DELETE", f"/api/v1/resources/queues/{quote(evil, safe='')}"))
    assert [answer.status for answer in answers] == [201, 200, 200, 201, 200, 200]
    assert not any("x-evil" in answer.headers for answer in answers)
    assert db.execute("SELECT count(*) FROM skep.dead_letters WHERE error = %s", [evil]).fetchall() == [(1,)]


@pytest.mark.parametrize(
    "id_", ["nope", "", f"{NOWHERE}0", "{" + NOWHERE + "}", "ffffffff-ffff-ffff-ffff-ffffffffffff", "x" * 9000]
)
def test_ids_that_are_none(client: Client, id_: str):
    (verdict,) = client.post("/api/v1/ack", {"transactionId": "t", "partitionId": id_}).json
    assert (verdict["success"], verdict["error"]) == (False, "Message not found")
    (verdict,) = client.post("/api/v1/ack", {"transactionId": "t", "partitionId": NOWHERE, "leaseId": id_}).json
    assert verdict["success"] is False
    done = client.post("/api/v1/transaction", {
        "operations": [{"type": "ack", "transactionId": "t", "partitionId": NOWHERE}], "requiredLeases": [id_]
    }).json  # fmt: skip
    assert done["success"] is False
    if id_:
        done = client.post(f"/api/v1/lease/{quote(id_)}/extend").json
        assert (done["success"], done["error"]) == (False, "Lease not found")


@pytest.mark.parametrize("seconds", [b"1e400", b"-1", b"0", b"604801", b"NaN", b'"60"', b"null", b"[]", b"1e-400"])
def test_extensions_that_are_refused(client: Client, seconds: bytes):
    assert is_refusal(client.post(f"/api/v1/lease/{NOWHERE}/extend", b'{"seconds":%s}' % seconds))


POISONS: dict[str, dict[str, Any]] = {
    "NUL": {"queue": "bad", "payload": NUL},
    "name": {"queue": "x" * 256},
    "id": {"queue": "bad", "transactionId": "x" * 256},
    "blocked": {"queue": "nobody"},
}


@contextmanager
def held(database_url: str, table: LiteralString) -> Generator[None]:
    """Let nobody write to a table."""
    with psycopg.connect(database_url) as connection:
        connection.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
        yield


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_a_poisonous_push_among_others(
    client: Client, queue: str, db: psycopg.Connection, module_database_url: str, poison: dict[str, Any]
):
    """The others are merged with it, and are stored, each once."""
    merger = client.app.state.push
    options = '{"semantics": "pub_sub", "block_without_subscribers": true}'
    db.execute("SELECT skep.configure_queue('nobody', %s)", [options])
    with ThreadPoolExecutor(32) as threads:
        with held(module_database_url, "skep.messages"):
            good = []
            while merger._free:  # these hold up the others, so that they wait for one call
                free = merger._free
                good.append(threads.submit(client.push, queue, len(good)))
                until(lambda free=free: merger._free < free)
            ahead = len(good)
            good += [threads.submit(client.push, queue, number) for number in range(ahead, 16)]
            bad = threads.submit(client.post, PUSH, {"items": [{"queue": queue, "payload": "never"}, poison]})
            good += [threads.submit(client.push, queue, number) for number in range(16, 31)]
            until(lambda: len(merger._waiting) == 32 - ahead)
        assert bad.result().status == (503 if poison["queue"] == "nobody" else 400)
        assert [push.result()[0]["status"] for push in good] == ["queued"] * 31
    assert stored(db, queue) == list(range(31))


def test_a_broken_answer_among_others(client: Client, queue: str, module_database_url: str):
    client.push(queue, *range(30))
    names = ("transactionId", "partitionId", "leaseId")
    answers = [{name: message[name] for name in names} for message in client.pop(queue)]
    answers.insert(15, {"transactionId": NUL, "partitionId": "nope", "leaseId": "nope"})
    with ThreadPoolExecutor(32) as threads:
        with held(module_database_url, "skep.runs"):
            said = [threads.submit(client.post, "/api/v1/ack", answer) for answer in answers]
            until(lambda: len(client.app.state.part(QueenAcks)._waiting) >= 20)
        succeeded = [answer.result().json[0]["success"] for answer in said]
    assert succeeded == [True] * 15 + [False] + [True] * 15
