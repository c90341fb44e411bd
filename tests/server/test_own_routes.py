"""Skep's own routes: options, subscriptions, fan-out, dead letters, retention; and that rights hold on them."""

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import jwt
import psycopg
import pytest

from skep.server.api.queues import Options
from tests.server.serving import Client, client, in_thread, quiet, serving, until

__all__ = ["client", "in_thread", "quiet"]
SECRET = "s" * 32


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


def good(client: Client, method: str, path: str, body: object = None, **query: Any) -> Any:
    answer = client.call(method, f"/api/v1/{path}", body, **query)
    assert answer.status == 200, answer.body
    return answer.json


def refused(client: Client, status: int, method: str, path: str, body: object = None, **query: Any) -> str:
    answer = client.call(method, f"/api/v1/{path}", body, **query)
    assert answer.status == status, (answer.status, answer.body)
    return answer.json["error"]


def kill(client: Client, queue: str, *payloads: Any, group: str = "g", error: str = "oops") -> None:
    """Push messages and let a group give them up."""
    client.push(queue, *payloads)
    acks = [
        {"transactionId": m["transactionId"], "partitionId": m["partitionId"], "status": "dlq", "error": error}
        for m in client.pop(queue, consumerGroup=group)
    ]
    client.post("/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": group})


def test_the_options_are_those_of_the_database(db: psycopg.Connection):
    ((names,),) = db.execute("SELECT skep._queue_options()").fetchall()
    assert set(Options.__struct_fields__) == set(names)


def test_patch_changes_and_put_replaces(client: Client, queue: str):
    made = good(client, "PATCH", f"queues/{queue}", {"options": {"semantics": "pub_sub", "lease_time": 7}, "task": "t"})
    assert (made["name"], made["task"], made["options"]["semantics"]) == (queue, "t", "pub_sub")
    changed = good(client, "PATCH", f"queues/{queue}", {"options": {"retention_seconds": 60}})
    kept = changed["options"]
    assert (kept["lease_time"], kept["retention_seconds"], kept["semantics"]) == (7, 60, "pub_sub")
    assert good(client, "PATCH", f"queues/{queue}", {"options": {"retention_seconds": None}})["options"] == kept | {
        "retention_seconds": None
    }
    replaced = good(client, "PUT", f"queues/{queue}", {"options": {"retry_limit": 9}})
    options = replaced["options"]
    assert (options["lease_time"], options["retry_limit"], options["semantics"]) == (300, 9, "mixed")
    assert good(client, "GET", f"queues/{queue}") == replaced
    assert replaced in good(client, "GET", "queues")


def test_put_gives_the_defaults_of_a_new_queue(client: Client, queue: str):
    client.push(f"{queue}-plain", 1)
    plain = good(client, "GET", f"queues/{queue}-plain")["options"]
    assert good(client, "PUT", f"queues/{queue}", {})["options"] == plain


def test_put_makes_a_work_queue_parallel(client: Client, queue: str):
    """As PATCH does: 64 workers at once, unless a number is given; and 1 again when it is no work queue any more."""
    for options, concurrency in (
        ({"semantics": "queue"}, 64),
        ({"semantics": "queue", "concurrency": 3}, 3),
        ({"semantics": "queue", "concurrency": 1}, 1),
        ({"semantics": "mixed"}, 1),
    ):
        stored = good(client, "PUT", f"queues/{queue}", {"options": options})["options"]
        assert stored["concurrency"] == concurrency, options
        if options.get("concurrency") != 1 and concurrency != 1:
            assert good(client, "PATCH", f"queues/{queue}-patched", {"options": options})["options"] == stored


def test_bad_options(client: Client, queue: str):
    assert "lease_tim" in refused(client, 400, "PATCH", f"queues/{queue}", {"options": {"lease_tim": 1}})
    assert "semantics" in refused(client, 400, "PATCH", f"queues/{queue}", {"options": {"semantics": "fifo"}})
    assert "lease_time" in refused(client, 400, "PATCH", f"queues/{queue}", {"options": {"lease_time": -1}})
    assert refused(client, 400, "PATCH", f"queues/{queue}") == "Empty request body"
    assert queue in refused(client, 404, "GET", f"queues/{queue}")


def test_the_life_of_a_subscription(client: Client, queue: str):
    wish = {"group": "g", "queue": queue, "mode": "all", "heartbeat_interval": 5, "heartbeat_timeout": 50}
    made = good(client, "POST", "subscriptions", wish)
    assert (made["group"], made["status"], made["heartbeat_timeout"]) == ("g", "ACTIVE", 50)
    assert good(client, "POST", "subscriptions", wish | {"mode": "new"}) == made, "the first mode wins"
    assert good(client, "GET", "subscriptions", group="g", queue=queue) == [made]
    client.push(queue, 1)
    (paused,) = good(client, "POST", "subscriptions/g/pause", {"queue": queue})
    assert paused["status"] == "PAUSED"
    assert client.pop(queue, consumerGroup="g") == []
    (resumed,) = good(client, "POST", "subscriptions/g/resume", {"queue": queue})
    assert resumed["status"] == "ACTIVE"
    assert len(client.pop(queue, consumerGroup="g")) == 1
    (alive,) = good(client, "POST", "subscriptions/g/heartbeat", {"queue": queue})
    assert alive["last_heartbeat_at"] > made["last_heartbeat_at"]
    (ended,) = good(client, "POST", "subscriptions/g/cancel", {"queue": queue})
    assert ended["status"] == "CANCELLED"
    (status,) = good(client, "GET", "groups", group="g", queue=queue)
    assert (status["group"], status["status"]) == ("g", "CANCELLED")


def test_the_retry_policy_of_a_group(client: Client, queue: str):
    wish = {"group": "g", "queue": queue, "retry_limit": 0, "retry_delay": 2, "max_retry_delay": 5, "retry_jitter": 0}
    made = good(client, "POST", "subscriptions", wish)
    assert {name: made[name] for name in wish} == wish
    body = {"queue": queue, "options": {"retry_delay": None, "retry_jitter": 0.5}}
    (changed,) = good(client, "PATCH", "subscriptions/g", body)
    assert changed == made | {"retry_delay": None, "retry_jitter": 0.5}
    assert "retry_limit" in refused(client, 400, "PATCH", "subscriptions/g", {"options": {"retry_limit": -1}})
    assert "lease_time" in refused(client, 400, "PATCH", "subscriptions/g", {"options": {"lease_time": 1}})
    refused(client, 404, "PATCH", "subscriptions/nobody", body)


def test_where_a_group_starts_is_explained(client: Client, queue: str):
    client.push(queue, 1, 2, 3)
    good(client, "POST", "subscriptions", {"group": "g", "queue": queue, "start_from": 2})
    found = good(client, "GET", f"subscriptions/g/start/{queue}")
    assert (found["scope"], found["mode"], found["start_offset"], found["has_started"]) == ("queue", "offset", 2, False)
    assert good(client, "GET", f"subscriptions/g/start/{queue}", partition="other")["start_offset"] is None


def test_resuming_wakes_who_waits(quiet: Client, queue: str, in_thread: Callable[..., Any]):
    client = quiet
    good(client, "POST", "subscriptions", {"group": "g", "queue": queue, "mode": "all"})
    good(client, "POST", "subscriptions/g/pause", {"queue": queue})
    client.push(queue, 1)
    waiting = in_thread(client.pop, queue, consumerGroup="g", wait="true", timeout=20_000)
    until(client.parked)
    good(client, "POST", "subscriptions/g/resume", {"queue": queue})
    assert [message["data"] for message in waiting.result(5)] == [1]


def test_removing_a_group(client: Client, queue: str):
    good(client, "POST", "subscriptions", {"group": "g", "queue": queue, "mode": "all"})
    client.push(queue, 1, 2)
    assert good(client, "DELETE", "subscriptions/g", queue=queue) == {"messages": 2}
    refused(client, 409, "DELETE", "subscriptions/g", queue=queue)


def test_completing_orphans(client: Client, queue: str):
    good(client, "POST", "subscriptions", {"group": "g", "queue": queue, "mode": "all"})
    client.push(queue, 1, 2, 3)
    body = {"queue": queue, "older_than_seconds": 0}
    assert good(client, "POST", "subscriptions/g/force-complete", body) == {"messages": 3}
    assert client.pop(queue, consumerGroup="g") == []
    refused(client, 400, "POST", "subscriptions/g/force-complete", body | {"older_than_seconds": -5})


def test_a_bad_wish_is_refused(client: Client, queue: str):
    refused(client, 400, "POST", "subscriptions", {"queue": queue})
    assert "mode" in refused(client, 400, "POST", "subscriptions", {"group": "g", "queue": queue, "mode": "sometimes"})
    refused(client, 404, "POST", "subscriptions/nobody/pause", {"queue": queue})


def test_who_owes_a_message(client: Client, queue: str):
    for group in ("done", "owing"):
        good(client, "POST", "subscriptions", {"group": group, "queue": queue, "mode": "all"})
    (pushed,) = client.push(queue, 1)
    client.pop(queue, consumerGroup="done", autoAck="true")
    groups = good(client, "GET", f"messages/{pushed['message_id']}/groups")
    assert {each["group"]: (each["completed"], each["state"]) for each in groups} == {
        "done": (True, "completed"),
        "owing": (False, "pending"),
    }
    (status,) = good(client, "GET", f"queues/{queue}/messages")
    assert (status["required_consumer_groups"], status["completed_consumer_groups"]) == (2, 1)
    assert (status["pending_groups"], status["id"]) == (["owing"], pushed["message_id"])
    assert good(client, "GET", f"queues/{queue}/messages", offset=1) == []
    assert good(client, "GET", f"queues/{queue}/messages", partition="other") == []
    (blocked,) = good(client, "GET", f"queues/{queue}/blocked")
    assert (blocked["group"], blocked["pending"], blocked["is_floor"]) == ("owing", 1, True)
    (lag,) = good(client, "GET", f"queues/{queue}/lag", group="owing")
    assert (lag["partition"], lag["lag"]) == ("Default", 1)
    assert good(client, "GET", f"queues/{queue}/lag", group="done")[0]["lag"] == 0
    refused(client, 404, "GET", "messages/nonsense/groups")


def test_dead_letters_are_driven_once(client: Client, queue: str, in_thread: Callable[..., Any]):
    kill(client, queue, *range(20))
    dry = good(client, "POST", "dead-letters/redrive", {"queue": queue, "dry_run": True})
    assert (dry["dry_run"], len(dry["letters"]), dry["letters"][0]["message_id"]) == (True, 20, None)
    racers = [in_thread(good, client, "POST", "dead-letters/redrive", {"queue": queue}) for _ in range(6)]
    driven = [letter for racer in racers for letter in racer.result()["letters"]]
    assert sorted(letter["id"] for letter in driven) == sorted(letter["id"] for letter in dry["letters"])
    again = client.pop(queue, consumerGroup="g")
    assert sorted(message["data"] for message in again) == list(range(20))
    done = [each for each in good(client, "GET", "dead-letters/audit") if each["queue"] == queue]
    assert {(each["action"], each["group"]) for each in done} == {("redriven", "g")}


def test_dead_letters_go_to_another_queue(quiet: Client, queue: str, in_thread: Callable[..., Any]):
    client = quiet
    kill(client, queue, 1)
    waiting = in_thread(client.pop, f"{queue}-again", wait="true", timeout=20_000)
    until(client.parked)
    good(client, "POST", "dead-letters/redrive", {"queue": queue, "to_queue": f"{queue}-again"})
    assert [message["data"] for message in waiting.result(5)] == [1]


def test_dead_letters_are_counted_and_purged(client: Client, queue: str):
    kill(client, queue, 1, 2, error="bad address")
    kill(client, queue, 3, error="no money")
    counts = good(client, "GET", "dead-letters/count", queue=queue)
    assert [(each["error"], each["letters"]) for each in counts] == [("bad address", 2), ("no money", 1)]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert good(client, "GET", "dead-letters/count", queue=queue, failed_after=later) == []
    refused(client, 400, "GET", "dead-letters/count", failed_after="yesterday")
    wish = {"queue": queue, "error": "address"}
    assert good(client, "POST", "dead-letters/purge", wish | {"dry_run": True}) == {"dry_run": True, "letters": 2}
    assert good(client, "POST", "dead-letters/purge", wish) == {"dry_run": False, "letters": 2}
    assert good(client, "POST", "dead-letters/purge", wish) == {"dry_run": False, "letters": 0}
    assert [each["letters"] for each in good(client, "GET", "dead-letters/count", queue=queue)] == [1]


def test_retention_is_reported_before_it_is_done(client: Client, queue: str):
    good(client, "PATCH", f"queues/{queue}", {"options": {"max_size": 2}})
    client.push(queue, *range(5))
    (row,) = good(client, "GET", "retention", queue=queue)
    assert (row["rule"], row["first_offset"], row["end_offset"]) == ("max_size", 0, 3)
    assert len(client.pop(queue)) == 5, "a report deletes nothing"
    other = f"{queue}-other"
    good(client, "PATCH", f"queues/{other}", {"options": {"max_size": 1}})
    client.push(other, *range(4))
    assert good(client, "POST", "retention/run")["messages"] >= 3
    assert good(client, "GET", "retention", queue=other) == []
    assert [message["data"] for message in client.pop(other)] == [3]


EVERYTHING = ["push", "pop", "ack", "seek", "configure", "read", "redrive", "admin"]


@pytest.fixture
def as_somebody(database_url: str) -> Generator[Callable[..., Client]]:
    """Call a server that asks for tokens, with these grants or this role."""
    with serving(database_url, auth=True, jwt_secret=SECRET) as running:

        def somebody(role: str | None = None, **grants: list[str]) -> Client:
            claims = {"sub": "me", **({"role": role} if role else {"grants": grants})}
            token = jwt.encode(claims, SECRET, "HS256")
            return Client(running.port, running.app, (("authorization", f"Bearer {token}"),))

        yield somebody


def test_lists_show_what_one_may_read(as_somebody: Callable[..., Client]):
    admin = as_somebody("admin")
    for queue in ("mine", "theirs"):
        kill(admin, queue, 1)
        good(admin, "PATCH", f"queues/{queue}", {"options": {"max_size": 1}})
        admin.push(queue, 2, 3)
    good(admin, "POST", "dead-letters/purge", {"queue": "theirs", "dry_run": False})
    kill(admin, "theirs", 1)
    me = as_somebody(mine=["read"])
    for path in ("queues", "subscriptions", "groups", "dead-letters/count", "retention"):
        assert {each.get("queue") or each.get("name") for each in good(admin, "GET", path)} == {"mine", "theirs"}, path
        assert {each.get("queue") or each.get("name") for each in good(me, "GET", path)} == {"mine"}, path
    assert len(good(admin, "GET", "dead-letters/audit")) == 1
    assert good(me, "GET", "dead-letters/audit") == []


@pytest.mark.parametrize(
    ("action", "method", "path", "body"),
    [
        ("read", "GET", "queues/theirs", None),
        ("configure", "PATCH", "queues/theirs", {}),
        ("configure", "PUT", "queues/theirs", {}),
        ("pop", "POST", "subscriptions", {"group": "g", "queue": "theirs"}),
        ("seek", "POST", "subscriptions/g/pause", {"queue": "theirs"}),
        ("seek", "POST", "subscriptions/g/resume", {"queue": "theirs"}),
        ("seek", "POST", "subscriptions/g/cancel", {"queue": "theirs"}),
        ("pop", "POST", "subscriptions/g/heartbeat", {"queue": "theirs"}),
        ("pop", "PATCH", "subscriptions/g", {"queue": "theirs", "options": {"retry_limit": 1}}),
        ("read", "GET", "subscriptions/g/start/theirs", None),
        ("admin", "DELETE", "subscriptions/g?queue=theirs", None),
        ("admin", "POST", "subscriptions/g/force-complete", {"queue": "theirs", "older_than_seconds": 1}),
        ("read", "GET", "queues/theirs/messages", None),
        ("read", "GET", "queues/theirs/blocked", None),
        ("read", "GET", "queues/theirs/lag", None),
        ("redrive", "POST", "dead-letters/redrive", {"queue": "theirs"}),
        ("admin", "POST", "dead-letters/purge", {"queue": "theirs"}),
    ],
)
def test_each_route_asks_for_its_right(
    as_somebody: Callable[..., Client], action: str, method: str, path: str, body: object
):
    as_somebody("admin").push("theirs", 1)
    good(as_somebody("admin"), "POST", "subscriptions", {"group": "g", "queue": "theirs"})
    others = [other for other in EVERYTHING if other not in (action, "admin")]
    assert refused(as_somebody(theirs=others, mine=EVERYTHING), 403, method, path, body) == "Insufficient permissions"
    answer = as_somebody(theirs=[action, "read"]).call(method, f"/api/v1/{path}", body)
    assert answer.status in (200, 409), answer.body
    assert Client(as_somebody().port, as_somebody().app).call(method, f"/api/v1/{path}", body).status == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("subscriptions", {"group": "g", "namespace": "mine"}),
        ("subscriptions/g/pause", None),
        ("dead-letters/redrive", {"group": "g"}),
        ("dead-letters/redrive", {"queue": "mine", "to_queue": "theirs"}),
        ("dead-letters/purge", {"ids": [1]}),
        ("retention/run", None),
        ("system/maintenance", {"enabled": True}),
    ],
)
def test_what_names_no_queue_needs_the_right_on_all(as_somebody: Callable[..., Client], path: str, body: object):
    as_somebody("admin").push("mine", 1)
    refused(as_somebody(mine=EVERYTHING), 403, "POST", path, body)


def test_the_groups_of_a_message_are_for_who_may_read_its_queue(as_somebody: Callable[..., Client]):
    (pushed,) = as_somebody("admin").push("theirs", 1)
    refused(as_somebody(mine=["read"]), 403, "GET", f"messages/{pushed['message_id']}/groups")
    assert good(as_somebody(theirs=["read"]), "GET", f"messages/{pushed['message_id']}/groups") == []


def test_the_audit_names_who_did_it(as_somebody: Callable[..., Client]):
    admin = as_somebody("admin")
    kill(admin, "mine", 1)
    good(admin, "POST", "dead-letters/redrive", {"queue": "mine"})
    assert [each["done_by"] for each in good(admin, "GET", "dead-letters/audit")] == ["me"]


def test_dead_letters_of_a_time(client: Client, queue: str):
    kill(client, queue, "early")
    ((early,),) = [good(client, "GET", "dead-letters", queue=queue)]
    kill(client, queue, "late")

    def found(**times: str) -> list[Any]:
        return [letter["payload"] for letter in good(client, "GET", "dead-letters", queue=queue, **times)]

    between = (datetime.fromisoformat(early["failed_at"]) + timedelta(microseconds=1)).isoformat()
    assert found() == ["late", "early"]
    assert (found(failed_after=between), found(failed_before=between)) == (["late"], ["early"])
    assert found(failed_after=between, failed_before=between) == []
    assert "failed_before" in refused(client, 400, "GET", "dead-letters", failed_before="yesterday")


def test_defaults(client: Client, queue: str):
    usual = {"subscription_mode": "all", "max_poll_interval": 2}
    assert good(client, "GET", "defaults") == usual
    try:
        assert good(client, "PATCH", "defaults", {"subscription_mode": "new"}) == usual | {"subscription_mode": "new"}
        assert good(client, "PATCH", "defaults", {"max_poll_interval": 0.5})["subscription_mode"] == "new"
        client.pop(queue, consumerGroup="born new")
    finally:
        assert good(client, "PATCH", "defaults", usual) == usual
    client.pop(queue, consumerGroup="born later")
    modes = {each["group"]: each["mode"] for each in good(client, "GET", "subscriptions", queue=queue)}
    assert modes == {"born new": "new", "born later": "all"}
    for wrong in ({"subscription_mode": "timestamp"}, {"max_poll_interval": 0}, {"max_poll": 1}):
        refused(client, 400, "PATCH", "defaults", wrong)
    assert good(client, "GET", "defaults") == usual


def test_the_outbox(client: Client, db: psycopg.Connection, queue: str):
    assert good(client, "GET", "outbox") == {"transactions": 0, "oldest_seconds": None, "waiting": 0}
    with db.transaction():
        db.execute("INSERT INTO skep.outbox (queue, payload) VALUES (%s, '1')", [queue])
        told = good(client, "GET", "outbox")
        assert (told["transactions"], told["waiting"]) == (1, 0)
        assert told["oldest_seconds"] > 0
    assert [message["data"] for message in client.pop(queue)] == [1]
