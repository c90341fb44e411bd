"""Delayed messages over HTTP: `delay` and `deliverAt` of a pushed item."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import append_due, pass_time
from tests.server.api import Api
from tests.server.serving import until

pytest_plugins = ["tests.server.fixtures"]

HOUR = 3600


def push(api: Api, *items: dict[str, Any], expect: int = 201) -> Any:
    return api.post("push", {"items": [{"queue": "q"} | item for item in items]}, expect=expect)


def test_the_answer_has_an_id_and_a_due_time(api: Api, db: psycopg.Connection):
    first, second, third = push(
        api,
        {"payload": 1, "delay": HOUR, "transactionId": "a", "traceId": "018f3c1e-0000-7000-8000-000000000001"},
        {"payload": 2},
        {"payload": 3, "deliverAt": "2090-01-31T12:00:00+02:00"},
    )
    ((id_, due_at),) = db.execute("SELECT id::text, due_at FROM skep.list_delayed() LIMIT 1").fetchall()
    assert first == {
        "index": 0,
        "status": "delayed",
        "transaction_id": "a",
        "transactionId": "a",
        "queueName": "q",
        "message_id": id_,
        "trace_id": "018f3c1e-0000-7000-8000-000000000001",
        "dueAt": f"{due_at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
    }
    assert (second["status"], second["offset"], third["dueAt"]) == ("queued", 0, "2090-01-31T10:00:00.000Z")
    assert third["transactionId"] == third["message_id"]
    (again,) = push(api, {"payload": 1, "transactionId": "a"})
    assert (again["status"], again["message_id"], again["dueAt"]) == ("duplicate", id_, first["dueAt"])
    assert api.take("q", "g") == [2]


def test_without_a_zone_it_is_utc(api: Api):
    (told,) = push(api, {"deliverAt": "2090-01-31T12:00:00"})
    assert told["dueAt"] == "2090-01-31T12:00:00.000Z"


def test_it_is_delivered_when_it_is_due(api: Api, db: psycopg.Connection):
    push(api, {"payload": "later", "delay": HOUR})
    assert api.take("q", "g") == []
    pass_time(db, HOUR)
    assert api.take("q", "g") == ["later"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"delay": -1}, "delay must be between 0 and 315360000 seconds, got -1"),
        ({"delay": "soon"}, "delay"),
        ({"deliverAt": "soon"}, "deliverAt"),
        ({"delay": 1, "deliverAt": "2090-01-01T00:00:00Z"}, "delay and deliver_at are both given"),
    ],
)
def test_what_is_wrong_is_said(api: Api, item: dict[str, Any], words: str):
    answer = push(api, {"payload": 1}, item, expect=400)
    assert words in answer["error"]
    assert api.take("q") == []


def test_a_poll_that_waits_is_answered_when_it_is_due(api: Api):
    """No upkeep runs here: the server asks once a second for queues in which something is due."""
    assert api.take("q", "g") == []
    push(api, {"payload": "later", "delay": 1})
    (message,) = api.pop("q", "g", wait="true", timeout=20_000)
    assert message["data"] == "later"


def test_in_a_transaction(api: Api):
    operation = {"type": "push", "items": [{"queue": "q", "payload": 1, "delay": HOUR}, {"queue": "q", "payload": 2}]}
    outcome = api.post("transaction", {"operations": [operation]})
    first, second = outcome["results"]
    assert (first["status"], "offset" in first, second["offset"]) == ("delayed", False, 0)
    assert datetime.fromisoformat(first["dueAt"]) > datetime.now(UTC) + timedelta(minutes=59)
    assert api.take("q") == [2]


def test_encrypted(serve, db: psycopg.Connection):
    api = serve(encryption_keys=f"k1:{'11' * 32}")
    api.post("configure", {"queue": "q", "options": {"encryptionEnabled": True}}, expect=201)
    push(api, {"payload": "secret", "delay": HOUR})
    ((payload, headers),) = db.execute("SELECT payload, headers FROM skep.list_delayed()").fetchall()
    assert payload.keys() == {"encrypted", "iv", "authTag"}
    assert headers["skep-sealed"] == {"key": "k1", "queue": "q"}
    pass_time(db, HOUR)
    assert append_due(db) == 1
    assert api.take("q") == ["secret"]


def test_during_maintenance_a_delay_counts_from_the_push(api: Api, db: psycopg.Connection):
    api.post("system/maintenance", {"enabled": True})
    assert push(api, {"payload": "later", "delay": 2 * HOUR}, {"payload": "now"})[0]["status"] == "buffered"
    ((held,),) = db.execute("SELECT items FROM skep.held_pushes").fetchall()
    assert ("delay" in held[0], "deliver_at" in held[0], "deliver_at" in held[1]) == (False, True, False)
    api.post("system/maintenance", {"enabled": False})
    until(lambda: db.execute("SELECT count(*) FROM skep.delayed_messages").fetchall() == [(1,)])
    assert api.take("q") == ["now"]
