"""POST /api/v1/push: one answer for each item, in order; what is wrong is said, and stores nothing."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from tests.server.serving import Client

TRACE = "018f3c1e-0000-7000-8000-000000000001"


def test_every_item_has_its_answer(client: Client):
    first, second = client.push("answers", {"n": 1}, {"n": 2}, partition="p", traceId=TRACE)
    assert first == {
        "index": 0,
        "status": "queued",
        "transaction_id": first["message_id"],
        "transactionId": first["message_id"],
        "queueName": "answers",
        "message_id": first["message_id"],
        "partition_id": first["partition_id"],
        "trace_id": TRACE,
        "offset": 0,
    }
    assert (second["index"], second["offset"], second["partition_id"]) == (1, 1, first["partition_id"])


def test_a_repeat_is_a_duplicate_of_the_stored_message(client: Client):
    (stored,) = client.push("repeats", 1, transactionId="a")
    again, twin = client.push("repeats", 1, 1, transactionId="a")
    assert [each["status"] for each in (stored, again, twin)] == ["queued", "duplicate", "duplicate"]
    assert again["message_id"] == twin["message_id"] == stored["message_id"]
    assert "partition_id" not in again
    assert client.push("repeats", 1, partition="other", transactionId="a")[0]["status"] == "queued"


def test_payloads_come_out_as_they_went_in(client: Client):
    payloads = [None, True, 0, -1.5, 'é\u2028"\\', [], {}, {"a": [1, {"b": None}]}, "", 12345678901234567890]
    client.push("payloads", *payloads)
    assert [message["data"] for message in client.pop("payloads")] == payloads


def test_an_item_without_payload_is_null_and_has_the_default_partition(client: Client):
    client.post("/api/v1/push", {"items": [{"queue": "bare", "transactionId": "", "traceId": "", "unknown": 1}]})
    (message,) = client.pop("bare")
    assert (message["data"], message["partition"], message["traceId"]) == (None, "Default", None)


def test_nothing_to_push_is_an_empty_answer(client: Client):
    answer = client.post("/api/v1/push", {"items": []})
    assert (answer.status, answer.json) == (201, [])


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"", 400, "Empty request body"),
        (b"{", 400, "Invalid JSON: "),
        (b"[]", 400, "items array is required"),
        (b"{}", 400, "items array is required"),
        (b'{"items": 1}', 400, "items array is required"),
        (b'{"items": [{}]}', 400, "Queue must be a string (item 0)"),
        (b'{"items": [{"queue": "q"}, {"queue": 1}]}', 400, "Queue must be a string (item 1)"),
        (b'{"items": [{"queue": "q", "partition": 1}]}', 400, "Partition must be a string (item 0)"),
        (b'{"items": [{"queue": "q", "transactionId": 1}]}', 400, "TransactionId must be a string (item 0)"),
        (b'{"items": [{"queue": "q", "traceId": {}}]}', 400, "TraceId must be a string (item 0)"),
        (b'{"items": [{"queue": "q", "traceId": "x"}]}', 400, "TraceId must be a UUID (item 0)"),
        (b'{"items": [{"queue": ""}]}', 400, "queue name is missing"),
        (b'{"items": [{"queue": "q", "headers": {"skep-sealed": {}}}]}', 400, "headers that begin with skep-"),
        (b'{"items": [{"queue": "q", "payload": "\\u0000"}]}', 400, "unsupported Unicode escape sequence"),
        (
            b'{"items": [{"queue": "q", "transactionId": "%s"}]}' % (b"x" * 256),
            400,
            "the transaction id must have 1 to 255 characters, got 256",
        ),
    ],
)
def test_what_is_wrong_is_said(client: Client, body: bytes, status: int, error: str):
    answer = client.post("/api/v1/push", body)
    assert answer.status == status
    assert error in answer.json["error"]
    assert client.pop("q") == []


def test_one_bad_request_does_not_touch_those_it_is_merged_with(client: Client, in_thread: Callable[..., Future[Any]]):
    """H11: thirty at once, some of them unstorable; each good one is stored once."""
    bodies = [
        {"items": [{"queue": "merged", "payload": "\0" if n % 10 == 3 else n, "partition": f"p{n % 4}"}]}
        for n in range(30)
    ]
    answers = [answer.result() for answer in [in_thread(client.post, "/api/v1/push", body) for body in bodies]]
    assert [answer.status for answer in answers] == [400 if n % 10 == 3 else 201 for n in range(30)]
    got: list[Any] = []
    while messages := client.pop("merged", autoAck="true"):
        got += [message["data"] for message in messages]
    assert sorted(got) == [n for n in range(30) if n % 10 != 3]


def test_a_queue_that_is_pushed_to_gets_namespace_and_task_from_its_name(client: Client, module_database_url: str):
    client.push("shop.orders.eu", 1)
    with psycopg.connect(module_database_url) as connection:
        found = connection.execute("SELECT namespace, task FROM skep.queues WHERE name = 'shop.orders.eu'").fetchone()
    assert found == ("shop", "orders")


def test_headers_are_kept(client: Client):
    client.push("headers", 1, headers={"kind": "test", "n": 1})
    assert client.pop("headers")[0]["headers"] == {"kind": "test", "n": 1}
