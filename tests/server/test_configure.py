"""POST /api/v1/configure and DELETE /api/v1/resources/queues/:queue."""

from typing import Any

import psycopg
import pytest

from tests.server.serving import Client

DEFAULTS = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "maxSize": 0,
    "ttl": 3600,
    "deadLetterQueue": False,
    "dlqAfterMaxRetries": False,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "retentionEnabled": False,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 0,
}
OTHERS = {
    "leaseTime": 17,
    "retryLimit": 7,
    "retryDelay": 250,
    "maxSize": 1000,
    "ttl": 60,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "priority": 5,
    "delayedProcessing": 2,
    "windowBuffer": 3,
    "retentionSeconds": 100,
    "completedRetentionSeconds": 50,
    "retentionEnabled": True,
    "encryptionEnabled": True,
    "maxWaitTimeSeconds": 90,
}


def configure(client: Client, queue: str, options: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/configure", {"queue": queue, "options": options or {}, **rest})
    assert answer.status == 201, answer.body
    return answer.json


def columns(url: str, queue: str) -> dict[str, Any]:
    with psycopg.connect(url) as connection:
        ((row,),) = connection.execute("SELECT to_jsonb(q) FROM skep.queues q WHERE name = %s", [queue]).fetchall()
    return row


def test_the_answer_says_what_was_stored(client: Client, module_database_url: str):
    made = configure(client, "made", OTHERS, namespace="n", task="t")
    assert made["options"] == OTHERS
    assert (made["configured"], made["queue"], made["namespace"], made["task"]) == (True, "made", "n", "t")
    assert made["queueId"]
    assert made["partitionId"]
    stored = columns(module_database_url, "made")
    assert (stored["lease_time"], stored["retry_delay"]) == (17, 0.25)
    assert stored["max_size"] is None, "Queen keeps it and deletes nothing by it"
    assert (stored["retention_seconds"], stored["completed_retention_seconds"]) == (90, 50)


def test_defaults(client: Client, module_database_url: str):
    assert configure(client, "plain")["options"] == DEFAULTS
    stored = columns(module_database_url, "plain")
    assert (stored["retention_seconds"], stored["completed_retention_seconds"], stored["max_size"]) == (
        None,
        None,
        None,
    )


def test_what_is_not_given_stays(client: Client):
    configure(client, "merged", OTHERS)
    assert configure(client, "merged", {"retryLimit": 1, "unknown": 2})["options"] == OTHERS | {"retryLimit": 1}


def test_replace_goes_back_to_the_defaults(client: Client, module_database_url: str):
    configure(client, "replaced", OTHERS)
    assert configure(client, "replaced", {"leaseTime": 9}, mode="replace")["options"] == DEFAULTS | {"leaseTime": 9}
    assert columns(module_database_url, "replaced")["retention_seconds"] is None


def test_retention_counts_only_if_it_is_enabled(client: Client, module_database_url: str):
    configure(client, "kept", {"retentionSeconds": 10, "completedRetentionSeconds": 5})
    assert columns(module_database_url, "kept")["retention_seconds"] is None
    configure(client, "kept", {"retentionEnabled": True})
    stored = columns(module_database_url, "kept")
    assert (stored["retention_seconds"], stored["completed_retention_seconds"]) == (10, 5)


def test_null_namespace_and_task_are_not_said(client: Client):
    assert configure(client, "a.b.c", namespace=None, task=None)["namespace"] == "a"
    configure(client, "a.b.c", namespace="other")
    assert configure(client, "a.b.c", namespace=None)["namespace"] == "other"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "queue is required"),
        ({"queue": None}, "queue is required"),
        ({"queue": "q", "options": {"leaseTime": "soon"}}, "lease_time must be a number"),
        ({"queue": "q", "options": {"leaseTime": 0}}, "lease_time must be above 0 and at most 604800, got 0"),
        ({"queue": "q", "options": {"retryLimit": -1}}, "retry_limit must be at least 0, got -1"),
        ({"queue": "q", "options": []}, "options"),
        ({"queue": "x" * 256}, "queue name is 256 characters long"),
    ],
)
def test_what_is_wrong_is_said(client: Client, body: Any, error: str):
    refused = client.post("/api/v1/configure", body)
    assert refused.status == 400
    assert error in refused.json["error"]


def test_deleting_a_queue(client: Client):
    """H18: what is made anew under the name inherits nothing."""
    client.push("doomed", 1)
    client.pop("doomed", consumerGroup="g", subscriptionMode="new")
    assert client.call("DELETE", "/api/v1/resources/queues/doomed").json == {
        "deleted": True,
        "queue": "doomed",
        "existed": True,
    }
    assert client.call("DELETE", "/api/v1/resources/queues/doomed").json["existed"] is False
    client.push("doomed", 2)
    assert [m["data"] for m in client.pop("doomed", consumerGroup="g")] == [2]
