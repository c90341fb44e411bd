"""Encrypted queues over HTTP: sealed in the database, open on the wire, whatever becomes of the key."""

from collections.abc import Generator
from typing import Any

import psycopg
import pytest

from tests.server.serving import Client, serving

K1, K2 = f"k1:{'11' * 32}", f"k2:{'22' * 32}"
SECRET = {"card": "4111 1111", "ümlaut": [1, None, "🐝"]}


@pytest.fixture
def db(database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def configure(client: Client, **options: Any) -> None:
    assert (
        client.post("/api/v1/configure", {"queue": "q", "options": {"encryptionEnabled": True} | options}).status == 201
    )


def stored(db: psycopg.Connection) -> list[tuple[Any, Any]]:
    return db.execute('SELECT payload, headers FROM skep.messages ORDER BY "offset"').fetchall()


def answer(client: Client, message: dict[str, Any], status: str) -> None:
    fields = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    (verdict,) = client.post("/api/v1/ack", fields | {"status": status}).json
    assert verdict["success"], verdict


def test_sealed_at_rest_and_open_on_the_wire(database_url: str, db: psycopg.Connection):
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        client.push("q", SECRET, headers={"mine": 1})
        operation = {"type": "push", "items": [{"queue": "q", "payload": SECRET}]}
        assert client.post("/api/v1/transaction", {"operations": [operation]}).json["success"] is True
        for payload, headers in stored(db):
            assert payload.keys() == {"encrypted", "iv", "authTag"}
            assert headers["skep-sealed"] == {"key": "k1", "queue": "q"}
        messages = client.pop("q")
    assert [message["data"] for message in messages] == [SECRET, SECRET]
    assert messages[0]["headers"]["mine"] == 1


def test_dead_letters_stay_sealed_and_open_again(database_url: str, db: psycopg.Connection):
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        client.push("q", SECRET)
        answer(client, client.pop("q")[0], "dlq")
        ((payload, headers),) = db.execute("SELECT payload, headers FROM skep.dead_letters").fetchall()
        assert payload.keys() == {"encrypted", "iv", "authTag"}
        assert "skep-sealed" in headers
        db.execute("SELECT skep.redrive('q', to_queue => 'elsewhere')")
        (message,) = client.pop("elsewhere")
    assert message["data"] == SECRET


def test_rotation(database_url: str, db: psycopg.Connection):
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        client.push("q", "old")
    with serving(database_url, encryption_keys=f"{K2},{K1}") as client:
        client.push("q", "new")
        assert [headers["skep-sealed"]["key"] for _, headers in stored(db)] == ["k1", "k2"]
        assert [message["data"] for message in client.pop("q", consumerGroup="g")] == ["old", "new"]


@pytest.mark.parametrize("keys", [K2, None])
def test_a_key_that_is_gone(database_url: str, keys: str | None):
    """The message is delivered as it is, and says why: the next one is not held up, and nothing is lost."""
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        client.push("q", "old")
    with serving(database_url, encryption_keys=keys) as client:
        client.push("other", 1)
        (message,) = client.pop("q")
        assert "k1" in message["undecipherable"]
        assert message["data"].keys() == {"encrypted", "iv", "authTag"}
        answer(client, message, "retry")
    with serving(database_url, encryption_keys=f"{K2},{K1}") as client:
        (message,) = client.pop("q")
        assert message["data"] == "old"
        assert "undecipherable" not in message


def test_without_a_key(database_url: str, db: psycopg.Connection):
    with serving(database_url) as client:
        configure(client)
        items = [{"queue": "plain", "payload": 1}, {"queue": "q", "payload": 2}]
        refused = client.post("/api/v1/push", {"items": items})
        assert (refused.status, refused.json["code"]) == (500, "misconfigured")
        assert 'queue "q" is encrypted, but SKEP_ENCRYPTION_KEYS is not set' in refused.json["error"]
        operations = [{"type": "push", "items": items}]
        assert client.post("/api/v1/transaction", {"operations": operations}).json["code"] == "misconfigured"
        assert stored(db) == []


def test_nobody_else_seals(database_url: str, db: psycopg.Connection):
    """What a caller says is sealed would be opened for whoever pops it."""
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        client.push("q", SECRET)
        ((payload, headers),) = stored(db)
        item = {"queue": "mine", "payload": payload, "headers": headers}
        assert client.post("/api/v1/push", {"items": [item]}).status == 400
        operations = [{"type": "push", "items": [item]}]
        assert client.post("/api/v1/transaction", {"operations": operations}).status == 400
        assert client.pop("mine") == []


@pytest.mark.parametrize("payload", [b'"\xff"', b'"\xed\xa0\x80"', b'{"a":', b"01", b'"\\ud800"'])
def test_what_is_no_json_is_not_sealed(database_url: str, db: psycopg.Connection, payload: bytes):
    """The database cannot look into it any more, and every message popped with it would be lost."""
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        assert client.post("/api/v1/push", b'{"items":[{"queue":"q","payload":%s}]}' % payload).status == 400
    assert stored(db) == []


def test_an_edited_dead_letter_is_sealed_anew(database_url: str, db: psycopg.Connection):
    with serving(database_url, encryption_keys=K1) as client:
        configure(client)
        client.push("q", SECRET)
        answer(client, client.pop("q")[0], "dlq")
        (letter,) = client.dead_letters("q")
        assert client.post(f"/api/v1/dlq/{letter.id}/replay", {"payload": {"new": SECRET}}).status == 200
        assert stored(db)[-1][0].keys() == {"encrypted", "iv", "authTag"}
        (message,) = client.pop("q")
    assert message["data"] == {"new": SECRET}
