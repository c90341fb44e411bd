"""Published Queen clients that say who they are, at a server that asks."""

import json
import time
from collections.abc import Generator

import jwt
import psycopg
import pytest

from tests.server.conftest import Conversation, Seen
from tests.server.process import Server, serving

SECRET = "a secret of the tests, long enough for HS256"
SETTINGS = {"auth": "true", "jwt_secret": SECRET, "encryption_keys": f"k1:{'5e' * 32}"}


@pytest.fixture(scope="module")
def server(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with serving(module_database_url, tmp_path_factory.mktemp("server"), settings=SETTINGS) as running:
        yield running


@pytest.fixture
def seen(queen: Conversation, monkeypatch: pytest.MonkeyPatch) -> Seen:
    tokens = {
        "admin": token("admin"),
        "writer": token("read-write"),
        "reader": token("read-only"),
        "forged": token("admin", secret="another secret, of somebody else altogether"),
        "expired": token("admin", seconds=-3600),
    }
    monkeypatch.setenv("TOKENS", json.dumps(tokens))
    return queen("tokens")


def token(role: str, secret: str = SECRET, seconds: float = 3600) -> str:
    claims = {"sub": f"a {role}", "role": role, "exp": int(time.time() + seconds)}
    return jwt.encode(claims, secret, algorithm="HS256")


def test_who_may_do_what(seen: Seen):
    assert seen["nobody"] == "Authentication required"
    assert seen["forged"] == "Invalid token signature"
    assert seen["expired"] == "Token has expired"
    for refused in ("reader", "reader consumes", "writer deletes"):
        assert "Insufficient permissions" in seen[refused]
    assert (seen["reader pops"], seen["admin deletes"]) == ([], True)


def test_whose_message_it_is(seen: Seen):
    assert [(one["data"], one["producerSub"]) for one in seen["popped"]] == [("mine", "a read-write")]


def test_what_is_encrypted_is_read_by_consumers_only(seen: Seen, module_database_url: str):
    assert seen["secret"] == [{"card": "4111 1111"}]
    with psycopg.connect(module_database_url) as connection:
        stored = connection.execute("SELECT string_agg(m::text, ' ') FROM skep.messages m").fetchone()
    assert stored is not None
    assert "4111" not in stored[0]
