"""Skep's own API for messages: push, pop, ack, fail, dead-letter, release, extend, transactions."""

import http.client
import threading
import time
from typing import Any
from uuid import uuid4

import pytest

from tests.server.serving import Answer, Client, client, until

__all__ = ["client"]

QUEUES = "/api/v1/queues"


@pytest.fixture
def queue() -> str:
    return f"orders-{uuid4()}"


def push(client: Client, queue: str, *payloads: object, **options: object) -> list[dict[str, Any]]:
    messages = [{"payload": payload, **options} for payload in payloads]
    response = client.post(f"{QUEUES}/{queue}/messages", {"messages": messages})
    assert response.status == 201, response.body
    return response.json["messages"]


def pop(client: Client, queue: str, **options: object) -> dict[str, Any]:
    response = client.post(f"{QUEUES}/{queue}/pop", {"group": "billing", **options})
    assert response.status == 200, response.body
    return response.json


def on_lease(client: Client, lease: str, verb: str, **body: object) -> Answer:
    return client.post(f"/api/v1/leases/{lease}/{verb}", body)


def test_push_pop_and_ack(client: Client, queue: str):
    stored = push(client, queue, {"id": 1}, partition="customer-7", headers={"a": "b"}, transaction_id="t1")
    assert [(one["status"], one["offset"]) for one in stored] == [("queued", 0)]
    popped = pop(client, queue)
    (message,) = popped["messages"]
    assert message["id"] == stored[0]["id"]
    wanted = {
        "queue": queue,
        "partition": "customer-7",
        "offset": 0,
        "payload": {"id": 1},
        "headers": {"a": "b"},
        "transaction_id": "t1",
        "trace_id": None,
        "producer": None,
        "attempt": 1,
        "lease": popped["leases"][0],
    }
    assert {name: message[name] for name in wanted} == wanted
    assert message["created_at"].endswith("Z")
    assert message["expires_at"] > message["created_at"]
    assert on_lease(client, popped["leases"][0], "ack").json == {"applied": [True]}
    assert pop(client, queue) == {"messages": [], "leases": []}


def test_a_duplicate_is_the_stored_message(client: Client, queue: str):
    first = push(client, queue, 1, transaction_id="t")[0]
    again = push(client, queue, 2, transaction_id="t")[0]
    assert (again["status"], again["id"], again["offset"]) == ("duplicate", first["id"], 0)


def test_a_delayed_message_has_a_due_time_and_no_offset(client: Client, queue: str):
    (delayed,) = push(client, queue, "later", delay=3600)
    assert delayed["status"] == "delayed"
    assert "offset" not in delayed
    assert delayed["due_at"].endswith("Z")
    assert pop(client, queue)["messages"] == []
    (due,) = push(client, queue, "at", deliver_at="2090-01-31T12:00:00")
    assert due["due_at"] == "2090-01-31T12:00:00Z"


def test_a_stale_lease_is_refused(client: Client, queue: str):
    push(client, queue, 1)
    (lease,) = pop(client, queue)["leases"]
    assert on_lease(client, lease, "ack").status == 200
    for verb in ("ack", "fail", "dead-letter", "release", "extend"):
        response = on_lease(client, lease, verb)
        assert (response.status, response.json["code"]) == (409, "stale_lease"), verb


def test_messages_of_a_lease_are_acknowledged_one_by_one(client: Client, queue: str):
    push(client, queue, 1, 2, 3)
    popped = pop(client, queue, batch=3)
    ids = [message["id"] for message in popped["messages"]]
    (lease,) = popped["leases"]
    assert on_lease(client, lease, "ack", ids=ids[:2]).json == {"applied": [True, True]}
    assert on_lease(client, lease, "release").status == 200
    (rest,) = pop(client, queue)["messages"]
    assert (rest["payload"], rest["attempt"]) == (3, 1)


def test_a_failure_is_retried_with_the_next_attempt(client: Client, queue: str):
    push(client, queue, 1)
    (lease,) = pop(client, queue)["leases"]
    assert on_lease(client, lease, "fail", error="no", retry_after=0.001).status == 200
    (message,) = until(lambda: pop(client, queue)["messages"])
    assert message["attempt"] == 2


def test_one_message_fails_alone(client: Client, queue: str):
    push(client, queue, 1, 2)
    popped = pop(client, queue, batch=2)
    first = popped["messages"][0]["id"]
    assert on_lease(client, popped["leases"][0], "fail", alone=True).status == 400
    assert on_lease(client, popped["leases"][0], "fail", ids=[first], alone=True, retry_after=0.001).status == 200
    (message,) = until(lambda: pop(client, queue)["messages"])
    assert (message["payload"], message["attempt"]) == (1, 2)


def test_a_dead_letter_keeps_its_error(client: Client, queue: str):
    push(client, queue, {"bad": True})
    (lease,) = pop(client, queue)["leases"]
    assert on_lease(client, lease, "dead-letter", error="cannot be parsed").status == 200
    (dead,) = client.get("/api/v1/dead-letters", queue=queue).json
    assert (dead["error"], dead["payload"]) == ("cannot be parsed", {"bad": True})


def test_a_lease_is_extended(client: Client, queue: str):
    push(client, queue, 1)
    popped = pop(client, queue, lease_time=5)
    extended = on_lease(client, popped["leases"][0], "extend", seconds=600).json["expires_at"]
    assert extended > popped["messages"][0]["expires_at"]


def test_many_acks_of_several_leases_in_one_request(client: Client, queue: str):
    for partition in ("a", "b"):
        push(client, queue, partition, partition=partition)
    popped = pop(client, queue, batch=10, partitions=2)
    first, second = popped["leases"]
    acks = [{"lease": first}, {"lease": second, "status": "release"}, {"lease": str(uuid4())}]
    assert client.post("/api/v1/acks", {"acks": acks}).json == {"applied": [True, True, False]}
    assert [message["lease"] for message in popped["messages"]] == popped["leases"]
    assert len(pop(client, queue, batch=10, partitions=2)["messages"]) == 1


def test_auto_ack_completes_at_delivery(client: Client, queue: str):
    push(client, queue, 1, 2)
    popped = pop(client, queue, batch=2, auto_ack=True)
    assert (len(popped["messages"]), popped["leases"]) == (2, [])
    assert pop(client, queue)["messages"] == []


def test_one_partition_by_name_and_queues_by_namespace(client: Client):
    namespace = f"shop{uuid4().hex}"
    push(client, f"{namespace}.mail", 1, partition="x")
    push(client, f"{namespace}.mail", 2, partition="y")
    assert [m["payload"] for m in pop(client, f"{namespace}.mail", partition="y")["messages"]] == [2]
    wide = client.post("/api/v1/pop", {"namespace": namespace, "group": "audit", "batch": 10, "partitions": 10}).json
    assert sorted(message["payload"] for message in wide["messages"]) == [1, 2]


def test_a_waiting_pop_is_woken_by_a_push(client: Client, queue: str):
    popped: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: popped.append(pop(client, queue, wait=20)))
    thread.start()
    until(lambda: client.parked() == 1)
    start = time.monotonic()
    push(client, queue, "now")
    thread.join(5)
    assert [message["payload"] for message in popped[0]["messages"]] == ["now"]
    assert time.monotonic() - start < 5


def test_a_transaction_pushes_and_acknowledges_or_does_neither(client: Client, queue: str):
    push(client, queue, "in")
    (lease,) = pop(client, queue)["leases"]
    operations = [{"ack": {"lease": lease}}, {"push": {"queue": f"{queue}-out", "payload": "out"}}]
    done = client.post("/api/v1/transactions", {"operations": operations})
    assert [one["status"] for one in done.json["pushed"]] == ["queued"]
    refused = client.post("/api/v1/transactions", {"operations": operations})
    assert (refused.status, refused.json["code"]) == (409, "stale_lease")
    assert [m["payload"] for m in pop(client, f"{queue}-out", batch=10)["messages"]] == ["out"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("messages", {"messages": [{"payload": 1, "partitions": "x"}]}, "partitions"),
        ("messages", {"messages": [{"payload": 1, "trace_id": "no"}]}, "trace_id must be a UUID"),
        ("messages", {"messages": [{"payload": 1, "headers": {"skep-sealed": 1}}]}, "reserved"),
        ("messages", {"items": []}, "items"),
        ("pop", {"batch": 0}, "batch must be between 1 and"),
        ("pop", {"partitions": 0}, "partitions must be between 1 and"),
        ("pop", {"wait": -1}, "wait must be"),
        ("pop", {"grop": "x"}, "grop"),
        ("pop", {"subscription_mode": "sometimes"}, "sometimes"),
    ],
)
def test_a_bad_body_is_a_400_that_names_the_field(client: Client, queue: str, path: str, body: object, says: str):
    response = client.post(f"{QUEUES}/{queue}/{path}", body)
    assert response.status == 400
    assert says in response.json["error"]


def test_a_pop_whose_client_is_gone_leaves_no_lease(client: Client, queue: str):
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    connection.request("POST", f"{QUEUES}/{queue}/pop", '{"group": "g", "wait": 20}')
    until(lambda: client.parked() == 1)
    connection.close()
    push(client, queue, 1)
    (message,) = until(lambda: pop(client, queue, group="g")["messages"])
    assert message["attempt"] == 1
