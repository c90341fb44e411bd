"""Streams: a step is done whole or not at all, and what a stream holds back costs nothing."""

from collections.abc import Callable, Generator
from typing import Any
from uuid import uuid4

import jwt
import psycopg
import pytest

from tests.server.serving import Client, client, in_thread, quiet, serving, until

__all__ = ["client", "in_thread", "quiet"]


@pytest.fixture
def queue() -> str:
    return f"source-{uuid4().hex[:8]}"


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


def register(client: Client, queue: str, **fields: Any) -> str:
    body = {"name": f"of-{queue}", "source_queue": queue, "config_hash": "h1", **fields}
    answer = client.post("/streams/v1/queries", body)
    assert answer.status == 200, answer.body
    return answer.json["query_id"]


def pop(client: Client, queue: str, **query: Any) -> list[dict[str, Any]]:
    return client.pop(queue, consumerGroup=f"streams.of-{queue}", **query)


def cycle(client: Client, query: str, messages: list[dict[str, Any]], count: int = 0, **fields: Any) -> dict[str, Any]:
    """Make a step that acknowledges the first `count` of what was popped."""
    body: dict[str, Any] = {
        "query_id": query,
        "partition_id": messages[0]["partitionId"],
        "consumer_group": messages[0]["consumerGroup"],
    }
    if count:
        last = messages[count - 1]
        body["ack"] = {"transactionId": last["transactionId"], "leaseId": last["leaseId"], "count": count}
    fields["ack"] = body.get("ack", {}) | fields["ack"] if fields.get("ack") else body.get("ack")
    answer = client.post("/streams/v1/cycle", body | fields)
    assert answer.status == 200, answer.body
    return answer.json


def state(client: Client, query: str, partition: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/streams/v1/state/get", {"query_id": query, "partition_id": partition, **fields})
    assert answer.status == 200, answer.body
    return {row["key"]: row["value"] for row in answer.json["rows"]}


def upsert(key: str, value: Any = 1) -> dict[str, Any]:
    return {"type": "upsert", "key": key, "value": value}


def payloads(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["data"] for message in messages]


def test_a_stream_is_registered_once(client: Client, queue: str):
    body = {"name": queue, "source_queue": queue, "config_hash": "h1"}
    first, again = (client.post("/streams/v1/queries", body).json for _ in range(2))
    assert (first["success"], first["fresh"], first["reset"]) == (True, True, False)
    assert again == first | {"fresh": False}


def test_another_configuration_is_refused_or_resets(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, 1)
    (message,) = pop(client, queue)
    cycle(client, query, [message], state_ops=[upsert("k")])
    body = {"name": f"of-{queue}", "source_queue": queue, "config_hash": "h2"}
    refused = client.post("/streams/v1/queries", body)
    assert refused.status == 409
    assert "config_hash mismatch" in refused.json["error"]
    assert (refused.json["success"], refused.json["query_id"]) == (False, query)
    assert state(client, query, message["partitionId"]) == {"k": 1}
    reset = client.post("/streams/v1/queries", body | {"reset": True}).json
    assert (reset["success"], reset["reset"], reset["query_id"]) == (True, True, query)
    assert state(client, query, message["partitionId"]) == {}


def test_a_reset_to_the_same_configuration_keeps_the_state(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, 1)
    (message,) = pop(client, queue)
    cycle(client, query, [message], state_ops=[upsert("k")])
    assert register(client, queue, reset=True) == query
    assert state(client, query, message["partitionId"]) == {"k": 1}


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("queries", [], "request body must be a JSON object"),
        ("queries", {}, "name is required"),
        ("queries", {"name": "n"}, "source_queue is required"),
        ("queries", {"name": "n", "source_queue": "q"}, "config_hash is required"),
        ("queries", {"name": "", "source_queue": "q", "config_hash": "h"}, "name is required"),
        ("cycle", {}, "query_id is required"),
        ("cycle", {"query_id": str(uuid4())}, "partition_id is required"),
        ("cycle", {"query_id": str(uuid4()), "partition_id": None}, "partition_id is required"),
        ("state/get", {"partition_id": str(uuid4())}, "query_id is required"),
        ("cycle", b"{", "Invalid JSON"),
        ("cycle", b"", "Empty request body"),
    ],
)
def test_what_is_missing_is_said_in_queens_words(client: Client, path: str, body: object, error: str):
    answer = client.post(f"/streams/v1/{path}", body)
    assert answer.status == 400
    assert answer.json["error"].startswith(error)


def test_a_step_does_everything(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, *range(3))
    messages = pop(client, queue)
    sink = f"{queue}-sink"
    done = cycle(
        client,
        query,
        messages,
        3,
        state_ops=[upsert("a", {"n": 1}), upsert("b"), {"type": "delete", "key": "b"}, upsert("a", {"n": 2})],
        push_items=[{"queue": sink, "payload": {"sum": 3}}, {"queue": sink}],
    )
    assert (done["success"], done["queueName"], done["state_ops_applied"]) == (True, queue, 4)
    assert done["ack_result"] == {"success": True, "count": 3, "lease_released": True, "dlq": False}
    assert [one["status"] for one in done["push_results"]] == ["queued", "queued"]
    assert state(client, query, messages[0]["partitionId"]) == {"a": {"n": 2}}
    assert payloads(client.pop(sink)) == [{"sum": 3}, {}]
    assert pop(client, queue) == []


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({"ack": {"transactionId": "nobody"}}, "Message not found"),
        ({"ack": {"leaseId": str(uuid4())}}, "Invalid or expired lease"),
        ({"ack": {"leaseId": "nonsense"}}, "Invalid or expired lease"),
        ({"ack": {"transactionId": ""}}, "ack.transactionId is required"),
        ({"ack": {"status": "maybe"}}, "Unknown ack.status: maybe"),
        ({"ack": {"count": 0}}, "ack.count is at least 1"),
        ({"state_ops": [{"type": "merge", "key": "k"}]}, "Unknown state_op type: merge"),
        ({"state_ops": [upsert("k" * 3000)]}, "state key"),
        ({"query_id": str(uuid4())}, "query_id is unknown"),
        ({"query_id": "nonsense"}, "query_id is unknown"),
        ({"partition_id": "nonsense"}, "partition_id is unknown"),
        ({"push_items": [{"queue": "x" * 300}]}, "item 0: queue name is 300 characters long"),
    ],
)
def test_a_step_that_fails_changes_nothing(client: Client, queue: str, broken: dict[str, Any], error: str):
    query = register(client, queue)
    client.push(queue, 1, 2)
    messages = pop(client, queue)
    sink = f"{queue}-sink"
    good = {"state_ops": [upsert("k")], "push_items": [{"queue": sink, "payload": 1}]}
    done = cycle(client, query, messages, 2, **good | broken)
    assert done["success"] is False
    assert done["error"].startswith(error)
    assert state(client, query, messages[0]["partitionId"]) == {}
    assert client.pop(sink) == []
    assert cycle(client, query, messages, 2)["success"], "the lease is as it was"


def test_a_repeated_step_is_refused(client: Client, queue: str):
    """Its answer was lost, perhaps: its state must not count twice."""
    query = register(client, queue)
    client.push(queue, 1)
    messages = pop(client, queue)
    assert cycle(client, query, messages, 1, state_ops=[upsert("k", 1)])["success"]
    again = cycle(client, query, messages, 1, state_ops=[upsert("k", 2)])
    assert (again["success"], again["error"]) == (False, "Invalid or expired lease")
    assert state(client, query, messages[0]["partitionId"]) == {"k": 1}


def test_a_step_for_a_message_that_is_done_answers_for_no_other(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, *range(3))
    messages = pop(client, queue)
    last = {"ack": {"count": 1}, "release_lease": False}
    assert cycle(client, query, messages, 3, **last)["success"]
    assert cycle(client, query, messages, 3, **last)["error"] == "Invalid or expired lease"
    assert cycle(client, query, messages, 2)["ack_result"] == {
        "success": True,
        "count": 2,
        "lease_released": True,
        "dlq": False,
    }


def test_of_steps_that_race_one_counts(client: Client, queue: str, in_thread: Callable[..., Any]):
    query = register(client, queue)
    client.push(queue, 1)
    messages = pop(client, queue)
    sink = {"queue": f"{queue}-sink", "payload": 1}
    racers = [in_thread(cycle, client, query, messages, 1, push_items=[sink]) for _ in range(12)]
    assert sorted(racer.result()["success"] for racer in racers) == [False] * 11 + [True]
    assert payloads(client.pop(f"{queue}-sink")) == [1]


def test_the_rest_of_a_lease_is_given_back(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, *range(5))
    done = cycle(client, query, pop(client, queue), 2)
    assert done["ack_result"] == {"success": True, "count": 2, "lease_released": True, "dlq": False}
    rest = pop(client, queue)
    assert payloads(rest) == [2, 3, 4]
    assert {message["deliveryAttempt"] for message in rest} == {1}


def test_messages_before_the_counted_ones_are_not_skipped(client: Client, queue: str):
    """H19: an answer for the last message alone completes nothing but that."""
    query = register(client, queue)
    client.push(queue, *range(4))
    messages = pop(client, queue)
    done = cycle(client, query, messages, 4, ack={"count": 1})
    assert done["ack_result"]["count"] == 1
    assert payloads(pop(client, queue)) == [0, 1, 2]


def test_a_kept_lease_keeps_the_rest(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, *range(4))
    messages = pop(client, queue)
    kept = cycle(client, query, messages, 1, release_lease=False)
    assert kept["ack_result"] == {"success": True, "count": 1, "lease_released": False, "dlq": False}
    assert pop(client, queue) == []
    assert cycle(client, query, messages[1:], 3)["ack_result"]["count"] == 3


def test_what_a_stream_holds_back_is_never_charged(client: Client, queue: str, db: psycopg.Connection):
    """F4: a gate keeps the lease, or does nothing at all, and waits for it to run out."""
    query = register(client, queue)
    client.post("/api/v1/configure", {"queue": queue, "options": {"leaseTime": 0.2, "retryLimit": 0}})
    client.push(queue, *range(3))
    cycle(client, query, pop(client, queue), 1, release_lease=False)
    for _ in range(4):
        rest = until(lambda: pop(client, queue))
        assert payloads(rest) == [1, 2]
        assert {message["deliveryAttempt"] for message in rest} == {1}
    rest = until(lambda: pop(client, queue))
    assert cycle(client, query, rest, 2)["success"]
    assert db.execute("SELECT count(*) FROM skep.dead_letters WHERE queue = %s", [queue]).fetchall() == [(0,)]


def test_an_ordinary_group_is_charged(client: Client, queue: str, db: psycopg.Connection):
    """The other side of the test above."""
    client.post("/api/v1/configure", {"queue": queue, "options": {"leaseTime": 0.1, "retryLimit": 0}})
    client.push(queue, 1)
    client.pop(queue, consumerGroup="plain")
    until(lambda: client.pop(queue, consumerGroup="plain") or dead(db, queue))
    assert dead(db, queue) == [(1,)]


def dead(db: psycopg.Connection, queue: str) -> list[Any]:
    return db.execute("SELECT payload FROM skep.dead_letters WHERE queue = %s", [queue]).fetchall()


def test_a_step_without_an_answer_touches_no_lease(client: Client, queue: str):
    """F5: the timer that closes idle windows."""
    query = register(client, queue)
    client.push(queue, 1, 2)
    messages = pop(client, queue)
    done = cycle(client, query, messages, ack=None, release_lease=True, state_ops=[upsert("k")])
    assert (done["success"], done["ack_result"]) == (True, None)
    assert pop(client, queue) == []
    assert cycle(client, query, messages, 2)["success"]


@pytest.mark.parametrize("status", ["failed", "dlq"])
def test_a_failed_run_goes_to_the_dead_letters(client: Client, queue: str, db: psycopg.Connection, status: str):
    query = register(client, queue)
    client.push(queue, *range(3))
    messages = pop(client, queue)
    done = cycle(client, query, messages, 2, ack={"status": status, "error": "oops"}, release_lease=False)
    assert done["ack_result"] == {"success": True, "count": 2, "lease_released": True, "dlq": True}
    letters = db.execute("SELECT payload, error FROM skep.dead_letters WHERE queue = %s ORDER BY id", [queue])
    assert letters.fetchall() == [(0, "oops"), (1, "oops")]
    assert payloads(pop(client, queue)) == [2]


def test_an_answer_needs_no_lease_id(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, 1)
    assert cycle(client, query, pop(client, queue), 1, ack={"leaseId": None})["success"]


def test_keys_are_found_by_what_they_are(client: Client, queue: str):
    """Prefixes have no wildcards; windows that are ripe are those whose end is a number and has come."""
    query = register(client, queue)
    client.push(queue, 1)
    (message,) = pop(client, queue)
    values = {
        "t:1\u001fa": {"windowEnd": 1000},
        "t:1\u001fb": {"windowEnd": 2000.5},
        "t_1": {"windowEnd": "1"},
        "t%1": 7,
        "u": {"windowEnd": 5},
    }
    cycle(client, query, [message], state_ops=[upsert(key, value) for key, value in values.items()])
    here = message["partitionId"]
    assert state(client, query, here) == values
    assert list(state(client, query, here)) == sorted(values)
    assert set(state(client, query, here, key_prefix="t:1\u001f")) == {"t:1\u001fa", "t:1\u001fb"}
    assert set(state(client, query, here, key_prefix="t_")) == {"t_1"}
    assert set(state(client, query, here, key_prefix="t%")) == {"t%1"}
    assert set(state(client, query, here, keys=["u", "t%1", "nothing"])) == {"u", "t%1"}
    assert set(state(client, query, here, ripe_at_or_before=1000)) == {"t:1\u001fa", "u"}
    assert set(state(client, query, here, ripe_at_or_before=2001, key_prefix="t")) == {"t:1\u001fa", "t:1\u001fb"}
    assert state(client, query, "nonsense") == state(client, str(uuid4()), here) == {}


def test_state_belongs_to_one_partition(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, 1, partition="a")
    client.push(queue, 2, partition="b")
    for message in pop(client, queue, partitions=2):
        cycle(client, query, [message], 1, state_ops=[upsert("k", message["partition"])])
        assert state(client, query, message["partitionId"]) == {"k": message["partition"]}


def test_deleting_the_queue_takes_the_state(client: Client, queue: str, db: psycopg.Connection):
    query = register(client, queue)
    client.push(queue, 1)
    cycle(client, query, pop(client, queue), 1, state_ops=[upsert("k")])
    client.call("DELETE", f"/api/v1/resources/queues/{queue}")
    assert db.execute("SELECT * FROM skep.stream_state WHERE query_id = %s", [query]).fetchall() == []


def test_a_duplicate_push_is_no_error(client: Client, queue: str):
    query = register(client, queue)
    client.push(queue, 1, 2)
    item = {"queue": f"{queue}-sink", "payload": 1, "transactionId": "once"}
    messages = pop(client, queue)
    first = cycle(client, query, messages, 1, push_items=[item], release_lease=False)
    second = cycle(client, query, messages[1:], 1, push_items=[item])
    assert [one["status"] for one in first["push_results"]] == ["queued"]
    assert [one["status"] for one in second["push_results"]] == ["duplicate"]
    assert payloads(client.pop(f"{queue}-sink")) == [1]


def test_what_a_stream_pushes_and_gives_back_wakes_who_waits(quiet: Client, in_thread: Callable[..., Any]):
    query = register(quiet, "source")
    quiet.push("source", 1, 2)
    messages = pop(quiet, "source")
    waiting = [
        in_thread(quiet.pop, "sink", wait="true", timeout=20_000),
        in_thread(pop, quiet, "source", wait="true", timeout=20_000),
    ]
    until(lambda: quiet.parked() == 2)
    cycle(quiet, query, messages, 1, push_items=[{"queue": "sink", "payload": "x"}])
    assert [payloads(each.result(5)) for each in waiting] == [["x"], [2]]


def test_what_is_pushed_is_sealed_and_signed(database_url: str):
    """By the same path as every push: encrypted queues, and who pushed it."""
    secret = "s" * 32
    token = jwt.encode({"sub": "stream-7", "role": "read-write"}, secret, "HS256")
    keys = f"k1:{'ab' * 32}"
    with serving(database_url, auth=True, jwt_secret=secret, encryption_keys=keys) as running:
        client = Client(running.port, running.app, (("authorization", f"Bearer {token}"),))
        client.post("/api/v1/configure", {"queue": "sink", "options": {"encryptionEnabled": True}})
        query = register(client, "source")
        client.push("source", 1)
        cycle(client, query, pop(client, "source"), 1, push_items=[{"queue": "sink", "payload": {"card": 42}}])
        (message,) = client.pop("sink")
        assert (message["data"], message["producerSub"]) == ({"card": 42}, "stream-7")
        with psycopg.connect(database_url) as db:
            stored = db.execute("SELECT payload FROM skep.messages WHERE headers ? 'skep-sealed'").fetchall()
        assert "encrypted" in stored[0][0]


def test_a_stream_needs_the_rights_of_its_parts(database_url: str):
    secret = "s" * 32

    def caller(running: Client, **grants: list[str]) -> Client:
        token = jwt.encode({"sub": "x", "grants": grants}, secret, "HS256")
        return Client(running.port, running.app, (("authorization", f"Bearer {token}"),))

    with serving(database_url, auth=True, jwt_secret=secret) as running:
        owner = caller(running, mine=["push", "pop", "ack", "read"], sink=["push"])
        query = register(owner, "mine")
        owner.push("mine", 1)
        messages = pop(owner, "mine")
        assert cycle(owner, query, messages, push_items=[{"queue": "sink"}], state_ops=[upsert("k")])["success"]
        other = caller(running, theirs=["push", "pop", "ack", "read"])
        here = {"query_id": query, "partition_id": messages[0]["partitionId"]}
        stolen = {"name": "of-mine", "source_queue": "theirs", "config_hash": "h9", "reset": True}
        assert other.post("/streams/v1/queries", stolen).status == 403
        assert other.post("/streams/v1/cycle", here).status == 403
        assert other.post("/streams/v1/state/get", here).status == 403
        assert owner.post("/streams/v1/cycle", here | {"push_items": [{"queue": "theirs"}]}).status == 403
        assert state(owner, query, messages[0]["partitionId"]) == {"k": 1}
