"""POST /api/v1/ack, /ack/batch and /lease/:id/extend: verdicts, repeats, and answers that must not count."""

from typing import Any
from uuid import uuid4

import pytest

from tests.server.serving import Client, until

NOBODY = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


def answer(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {key: message[key] for key in ("transactionId", "partitionId", "leaseId")} | fields


def ack(client: Client, message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    (verdict,) = client.post("/api/v1/ack", answer(message, **fields)).json
    return verdict


def batch(client: Client, *acks: dict[str, Any], group: str | None = None) -> list[dict[str, Any]]:
    return client.post("/api/v1/ack/batch", {"acknowledgments": list(acks), "consumerGroup": group}).json


def configure(client: Client, queue: str, **options: Any) -> None:
    assert client.post("/api/v1/configure", {"queue": queue, "options": {"retryDelay": 0, **options}}).status == 201


def dead(client: Client, queue: str) -> list[tuple[Any, str]]:
    return [(letter.payload, letter.error) for letter in client.dead_letters(queue)]


def test_a_verdict(client: Client):
    client.push("verdict", 1, partition="p", transactionId="t")
    (message,) = client.pop("verdict")
    assert ack(client, message, error=None, consumerGroup=None) == {
        "index": 0,
        "transactionId": "t",
        "success": True,
        "noop": False,
        "error": None,
        "queueName": "verdict",
        "partitionName": "p",
        "leaseReleased": True,
        "dlq": False,
    }


def test_a_repeat_is_a_success_without_effect(client: Client):
    """A client whose answer was lost on the way sends it again, when the lease is gone."""
    client.push("again", 1, 2)
    (message,) = client.pop("again", batch=1)
    first, second = ack(client, message), ack(client, message)
    assert (first["success"], first["noop"], second["success"], second["noop"]) == (True, False, True, True)
    late = ack(client, message, status="failed")
    assert (late["success"], late["error"]) == (False, "already committed: the group is past this message")
    assert [each["data"] for each in client.pop("again")] == [2]


def test_an_answer_without_lease_counts_for_the_live_lease_only(client: Client):
    """H5: it moves nothing that is not leased now, neither back nor forth."""
    client.push("bare", 1, 2, 3)
    (first,) = client.pop("bare", batch=1)
    nobody = ack(client, first, leaseId=None, consumerGroup="other")
    assert (nobody["success"], nobody["error"]) == (False, "Invalid or expired lease")
    assert ack(client, first, leaseId=None)["success"]
    second, third = client.pop("bare", consumerGroup="all")[1:]
    assert not ack(client, third, leaseId=None)["success"]  # not leased by the group of the queue
    assert [m["data"] for m in client.pop("bare")] == [2, 3]
    assert second["data"] == 2


def test_a_stale_lease_is_refused(client: Client):
    client.push("stale", 1)
    (message,) = client.pop("stale")
    verdict = ack(client, message, leaseId=str(uuid4()))
    assert (verdict["success"], verdict["error"], verdict["leaseReleased"]) == (
        False,
        "Invalid or expired lease",
        False,
    )
    assert ack(client, message)["success"]


@pytest.mark.parametrize(
    "odd",
    [
        {"transactionId": "nobody"},
        {"partitionId": NOBODY},
        {"partitionId": "no uuid"},
        {"partitionId": "00000000-0000-8001-8000-0000000000zz"},
    ],
)
def test_a_message_that_is_not_there(client: Client, odd: dict[str, str]):
    client.push("absent", 1)
    sound = {"transactionId": "t", "partitionId": NOBODY, "leaseId": None}
    verdict = ack(client, sound | odd)
    assert (verdict["success"], verdict["error"]) == (False, "Message not found")


def test_an_unknown_status_has_no_effect(client: Client):
    client.push("status", 1)
    (message,) = client.pop("status")
    verdict = ack(client, message, status="maybe")
    assert not verdict["success"]
    assert "unknown status" in verdict["error"]
    assert ack(client, message, status="ok")["success"]


def test_all_failed_comes_again_until_the_limit(client: Client):
    """H3: every message of a failing batch has retryLimit + 1 deliveries, and none is lost."""
    configure(client, "failing", retryLimit=2)
    client.push("failing", 1, 2, 3)
    for attempt in (1, 2, 3):
        messages = until(lambda: client.pop("failing", wait="true", timeout=1000))
        assert [(m["data"], m["deliveryAttempt"]) for m in messages] == [(n, attempt) for n in (1, 2, 3)]
        verdicts = batch(client, *(answer(m, status="failed", error=f"try {attempt}") for m in messages))
        assert [verdict["dlq"] for verdict in verdicts] == [attempt == 3] * 3
    assert client.pop("failing") == []
    assert sorted(dead(client, "failing")) == [(n, "try 3") for n in (1, 2, 3)]


def test_mixed_answers_lose_nothing(client: Client):
    """H2: design section 3, row two: the failed one of a batch that is otherwise done is a dead letter."""
    configure(client, "mixed")
    client.push("mixed", 1, 2, 3)
    one, two, three = client.pop("mixed")
    verdicts = batch(client, answer(one), answer(two, status="failed", error="bad"), answer(three))
    assert [(v["success"], v["dlq"]) for v in verdicts] == [(True, False), (True, True), (True, False)]
    assert dead(client, "mixed") == [(2, "bad")]


def test_a_single_failure_ends_the_lease(client: Client):
    """wire.md A.6: each() of the clients forgets what is behind a message it refuses; it must come again at once."""
    configure(client, "each", retryLimit=1)
    client.push("each", *range(5))
    zero, one, two, three, _ = client.pop("each")
    assert [ack(client, message)["success"] for message in (zero, one)] == [True, True]
    refused = ack(client, two, status="failed", error="bad")
    assert (refused["success"], refused["leaseReleased"], refused["dlq"]) == (True, True, False)
    assert ack(client, three)["error"] == "Invalid or expired lease"
    again = until(lambda: client.pop("each", wait="true", timeout=1000))
    assert [(m["data"], m["deliveryAttempt"]) for m in again] == [(2, 2), (3, 2), (4, 2)]
    assert ack(client, again[0], status="failed", error="worse")["dlq"]
    rest = client.pop("each", wait="true", timeout=1000)
    assert [(m["data"], m["deliveryAttempt"]) for m in rest] == [(3, 1), (4, 1)]
    assert dead(client, "each") == [(2, "worse")]


def test_a_batch_with_a_failure_and_without_all_answers_ends_the_lease(client: Client):
    configure(client, "some", retryLimit=3)
    client.push("some", *range(4))
    zero, one, *_ = client.pop("some")
    batch(client, answer(zero), answer(one, status="failed"))
    again = until(lambda: client.pop("some", wait="true", timeout=1000))
    assert [m["data"] for m in again] == [1, 2, 3]


def test_retry_gives_back_without_a_charge(client: Client):
    client.push("returned", 1)
    (message,) = client.pop("returned")
    assert ack(client, message, status="retry")["leaseReleased"]
    assert client.pop("returned", wait="true", timeout=1000)[0]["deliveryAttempt"] == 1


def test_dlq_is_at_once(client: Client):
    client.push("buried", 1)
    (message,) = client.pop("buried")
    assert ack(client, message, status="dlq", error="no use")["dlq"]
    assert dead(client, "buried") == [(1, "no use")]


def test_answers_of_several_queues_and_groups_have_their_own_verdicts(client: Client):
    client.push("many-a", 1)
    client.push("many-b", 2)
    (a,), (b,) = client.pop("many-a", consumerGroup="g"), client.pop("many-b", consumerGroup="g")
    verdicts = batch(client, answer(a), answer(b, leaseId=str(uuid4())), answer(b), group="g")
    assert [(v["index"], v["success"]) for v in verdicts] == [(0, True), (1, False), (2, True)]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/api/v1/ack", {}, "transactionId is required"),
        ("/api/v1/ack", {"transactionId": "t"}, "partitionId is required to ensure message uniqueness"),
        ("/api/v1/ack/batch", {}, "acknowledgments array is required"),
        (
            "/api/v1/ack/batch",
            {"acknowledgments": [{"partitionId": "p"}]},
            "Each acknowledgment must have a valid transactionId string",
        ),
        (
            "/api/v1/ack/batch",
            {"acknowledgments": [{"transactionId": "t", "partitionId": 1}]},
            "Each acknowledgment must have a valid partitionId string to ensure message uniqueness",
        ),
    ],
)
def test_what_is_wrong_is_said(client: Client, path: str, body: Any, error: str):
    refused = client.post(path, body)
    assert (refused.status, refused.json["error"]) == (400, error)


def test_extending_a_lease(client: Client):
    configure(client, "long", leaseTime=5)
    client.push("long", 1, partition="a")
    client.push("long", 2, partition="b")
    messages = client.pop("long", partitions=2)
    extended = client.post(f"/api/v1/lease/{messages[0]['leaseId']}/extend").json
    assert (extended["success"], extended["renewed"], extended["error"]) == (True, 2, None)
    assert extended["newExpiresAt"] == extended["expiresAt"] == extended["lease_expires_at"]
    later = client.post(f"/api/v1/lease/{messages[0]['leaseId']}/extend", {"seconds": 600}).json
    assert later["expiresAt"] > extended["expiresAt"]


@pytest.mark.parametrize("lease", [NOBODY, "no-uuid"])
def test_extending_a_lease_that_is_over(client: Client, lease: str):
    refused = client.post(f"/api/v1/lease/{lease}/extend", {"seconds": 5})
    assert refused.status == 200
    assert (refused.json["success"], refused.json["renewed"], refused.json["error"]) == (False, 0, "Lease not found")
