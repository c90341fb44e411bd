"""POST /api/v1/transaction: pushes and answers, all of them or none."""

from typing import Any
from uuid import uuid4

import pytest

from tests.server.serving import Client

NOBODY = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


def run(client: Client, *operations: dict[str, Any], **rest: Any) -> dict[str, Any]:
    answer = client.post("/api/v1/transaction", {"operations": list(operations), **rest})
    assert answer.status == 200, answer.body
    return answer.json


def ack(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "ack", **{key: message[key] for key in ("transactionId", "partitionId", "leaseId")}, **fields}


def push(queue: str, *payloads: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "push", "items": [{"queue": queue, "payload": payload, **fields} for payload in payloads]}


def test_both_happen(client: Client):
    client.push("in", 1)
    (message,) = client.pop("in")
    outcome = run(client, push("out", "a", "b", partition="p"), ack(message))
    assert outcome["success"]
    assert [(result["index"], result["type"], result["success"]) for result in outcome["results"]] == [
        (0, "push", True),
        (1, "push", True),
        (2, "ack", True),
    ]
    assert [m["id"] for m in client.pop("out")] == [result["messageId"] for result in outcome["results"][:2]]
    assert client.pop("in") == []


@pytest.mark.parametrize(
    "odd", [{"transactionId": "nobody"}, {"leaseId": str(uuid4())}, {"status": "retry"}, {"status": "?"}]
)
def test_neither_happens_if_an_answer_does_not_count(client: Client, odd: dict[str, str]):
    queue = f"both-{'-'.join(odd)}-{len(odd[next(iter(odd))])}"
    client.push(queue, 1)
    (message,) = client.pop(queue)
    outcome = run(client, push(f"{queue}-out", 1), ack(message, **odd))
    assert (outcome["success"], outcome["reason"], outcome["results"]) == (False, "ack_rejected", [])
    assert outcome["error"].startswith("ACK operation failed: ")
    assert client.pop(f"{queue}-out") == []
    assert run(client, ack(message))["success"]


def test_neither_happens_if_a_push_is_a_repeat(client: Client):
    client.push("once", 1, transactionId="t")
    (message,) = client.pop("once")
    outcome = run(client, ack(message), push("once", 2, transactionId="t"))
    assert (outcome["success"], outcome["reason"]) == (False, "duplicate")
    assert run(client, ack(message))["success"]


def test_a_repeat_of_the_whole_is_refused(client: Client):
    """Its answer has counted already, and its pushes may have no ids: a second time they would be stored twice."""
    client.push("twice", 1)
    (message,) = client.pop("twice")
    operations = (push("twice-out", 1), ack(message))
    assert run(client, *operations)["success"]
    assert not run(client, *operations)["success"]
    assert len(client.pop("twice-out")) == 1


def test_old_clients_name_the_lease_beside_the_operations(client: Client):
    client.push("old", 1, 2)
    one, two = client.pop("old")
    lease = one["leaseId"]
    assert not run(client, ack(one, leaseId=None), requiredLeases=[str(uuid4())])["success"]
    assert run(client, ack(one, leaseId=None), requiredLeases=[lease])["success"]
    assert run(client, ack(two, leaseId=None))["success"]  # without any: the lease its group holds now
    assert not run(client, ack(one, leaseId=None))["success"]


def test_an_answer_counts_for_one_of_several_leases(client: Client):
    client.push("several-a", 1)
    client.push("several-b", 2)
    messages = client.pop("several-a", consumerGroup="g") + client.pop("several-b", consumerGroup="h")
    leases = [message["leaseId"] for message in messages]
    acks = [ack(message, leaseId=None, consumerGroup=message["consumerGroup"]) for message in messages]
    assert not run(client, *acks, requiredLeases=[leases[0], str(uuid4())])["success"]
    outcome = run(client, push("several-out", 1), *acks, requiredLeases=leases)
    assert [result["success"] for result in outcome["results"]] == [True, True, True]
    assert not run(client, *acks, requiredLeases=leases)["success"]


def test_stale_leases_beside_the_operations_do_not_count_for_their_next_owner(client: Client):
    """A zombie whose two leases ran out cannot answer what somebody else has been given since."""
    queues = ("zombie-a", "zombie-b")
    for queue in queues:
        client.push(queue, 1)
    stale = [message for queue in queues for message in client.pop(queue, leaseSeconds=1)]
    mine = [message for queue in queues for message in client.pop(queue, wait="true", timeout=5000)]
    assert [message["deliveryAttempt"] for message in mine] == [2, 2]
    leases = [message["leaseId"] for message in stale]
    acks = [ack(message, leaseId=None) for message in stale]
    for required in (leases, [*leases, "no uuid"], [""]):
        outcome = run(client, push("zombie-out", 1), *acks, requiredLeases=required)
        assert (outcome["success"], outcome["reason"]) == (False, "ack_rejected"), required
    assert client.pop("zombie-out") == []
    assert run(client, *(ack(message) for message in mine))["success"]


def test_one_good_lease_among_the_required_does_not_carry_the_others(client: Client):
    client.push("carried", 1, partition="a")
    client.push("carried", 2, partition="b")
    (first,), (second,) = client.pop("carried", batch=1), client.pop("carried", batch=1)
    acks = [ack(message, leaseId=None) for message in (first, second)]
    assert not run(client, *acks, requiredLeases=[first["leaseId"], str(uuid4())])["success"]
    assert run(client, *acks, requiredLeases=[first["leaseId"], second["leaseId"]])["success"]


def test_only_what_is_named_is_done(client: Client):
    """H19: acknowledging the last message of a batch does not complete the ones before it."""
    client.push("last", 1, 2, 3)
    messages = client.pop("last", leaseSeconds=1)
    assert run(client, ack(messages[-1]))["success"]
    again = client.pop("last", wait="true", timeout=5000)
    assert [message["data"] for message in again] == [1]  # a lease that ran out comes again in halves


def test_a_message_without_payload_is_an_empty_object(client: Client):
    assert run(client, {"type": "push", "items": [{"queue": "bare-in-transaction"}]})["success"]
    assert [message["data"] for message in client.pop("bare-in-transaction")] == [{}]


def test_a_payload_that_is_too_large_is_the_reason(client: Client):
    client.call("PATCH", "/api/v1/queues/narrow", {"options": {"max_payload_bytes": 100}})
    outcome = run(client, push("narrow", "x" * 200))
    assert (outcome["success"], outcome["reason"]) == (False, "payload_too_large")


def test_failed_is_a_dead_letter_at_once(client: Client):
    client.push("bad", 1)
    (message,) = client.pop("bad")
    outcome = run(client, ack(message, status="failed", error="broken"))
    assert outcome["results"] == [
        {
            "index": 0,
            "type": "ack",
            "success": True,
            "transactionId": message["transactionId"],
            "error": None,
            "dlq": True,
        }
    ]
    assert [(letter.payload, letter.error) for letter in client.dead_letters("bad")] == [(1, "broken")]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "operations array required"),
        ({"operations": 1}, "operations array required"),
        ({"operations": []}, "operations array cannot be empty"),
        ({"operations": [{"type": "dance"}]}, "Invalid value 'dance'"),
        ({"operations": [push("q", 1)], "kv": [{"op": "get"}]}, "kv and timers are not supported"),
    ],
)
def test_what_is_wrong_is_said(client: Client, body: Any, error: str):
    refused = client.post("/api/v1/transaction", body)
    assert refused.status == 400
    assert error in refused.json["error"]
