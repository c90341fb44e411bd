"""API keys in the database: made, found, noted, revoked."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.engine.test_privileges import as_role
from tests.engine.verbs import Row, call, pass_time, refused

ID, HASH = "0123456789ab", bytes(range(32))
GRANTS = {"orders.*": ["push", "pop"], "mail": []}


def create(connection: psycopg.Connection, **changes: Any) -> Row:
    given = {"id": ID, "name": "shop", "hash": HASH, "role": "read-only"} | changes
    return call(connection, "create_api_key", **given)[0]


def find(connection: psycopg.Connection, digest: bytes = HASH) -> list[Row]:
    return call(connection, "_find_api_key", id=ID, hash=digest)


def last_used(connection: psycopg.Connection) -> Any:
    return call(connection, "list_api_keys")[0].last_used_at


def test_a_key_is_made_and_found(mq: psycopg.Connection):
    made = create(mq, grants=Jsonb(GRANTS))
    (found,) = find(mq)
    assert found == made
    assert (found.name, bytes(found.hash), found.role, found.grants) == ("shop", HASH, "read-only", GRANTS)
    assert (found.expires_at, found.revoked_at, found.last_used_at) == (None, None, None)


def test_an_unknown_key_is_not_found(mq: psycopg.Connection):
    assert find(mq) == []


def test_a_key_ends_when_it_expires(mq: psycopg.Connection):
    (soon,) = mq.execute("SELECT clock_timestamp() + interval '60 s'").fetchall()[0]
    create(mq, expires_at=soon)
    assert len(find(mq)) == 1
    pass_time(mq, 61)
    assert find(mq) == []
    assert len(call(mq, "list_api_keys")) == 1


def test_a_key_ends_when_it_is_revoked_and_stays_so(mq: psycopg.Connection):
    create(mq)
    (first,) = call(mq, "revoke_api_key", id=ID)
    assert find(mq) == []
    (second,) = call(mq, "revoke_api_key", id=ID)
    assert first.revoked_at == second.revoked_at is not None
    with refused("SK002", 'there is no key "ffffffffffff"'):
        call(mq, "revoke_api_key", id="f" * 12)


def test_the_use_of_a_key_is_noted_once_a_minute(mq: psycopg.Connection):
    create(mq)
    find(mq)
    first = last_used(mq)
    find(mq)
    assert last_used(mq) == first is not None
    pass_time(mq, 61)
    find(mq)
    assert last_used(mq) > first


def test_who_knows_only_the_id_does_not_use_the_key(mq: psycopg.Connection):
    create(mq)
    assert len(find(mq, bytes(32))) == 1  # the server compares
    assert last_used(mq) is None


def test_the_list_begins_with_the_newest(mq: psycopg.Connection):
    for number in range(3):
        create(mq, id=f"{number:012x}")
    assert [key.id[-1] for key in call(mq, "list_api_keys")] == ["2", "1", "0"]


def test_an_id_is_taken_once(mq: psycopg.Connection):
    create(mq)
    with refused("SK007", ID):
        create(mq, name="another", role="admin")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": "ABCDEF012345"}, "12 hex digits"),
        ({"id": "short"}, "12 hex digits"),
        ({"id": ID + "\n"}, "12 hex digits"),
        ({"id": None}, "cannot be created"),
        ({"name": ""}, "name is missing"),
        ({"name": None}, "name is missing"),
        ({"name": "x" * 256}, "256 characters"),
        ({"name": "a\r\nX-Evil: 1"}, "control characters"),
        ({"name": "\x1b[31mred"}, "control characters"),
        ({"hash": b"short"}, "32 bytes"),
        ({"hash": None}, "cannot be created"),
        ({"role": "king"}, "role is unknown"),
        ({"role": None}, "neither a role nor grants"),
        ({"grants": Jsonb([])}, "grants must be a JSON object, got a JSON array"),
        ({"grants": Jsonb(None)}, "grants must be a JSON object, got a JSON null"),
        ({"grants": Jsonb({"q": "push"})}, 'grant of "q"'),
        ({"grants": Jsonb({"q": None})}, 'grant of "q"'),
        ({"grants": Jsonb({"q": ["fly"]})}, 'grant of "q"'),
        ({"grants": Jsonb({"q": [["push"]]})}, 'grant of "q"'),
        ({"grants": Jsonb({"q": [None]})}, 'grant of "q"'),
        ({"grants": Jsonb({"": ["push"]})}, 'grant of ""'),
        ({"grants": Jsonb({"x" * 256: ["push"]})}, "grant of"),
    ],
)
def test_what_a_server_would_not_understand_is_refused(mq: psycopg.Connection, changes: dict[str, Any], says: str):
    with refused("SK001", says):
        create(mq, **changes)
    assert call(mq, "list_api_keys") == []


@pytest.mark.parametrize("role", ["skep_producer", "skep_consumer"])
def test_keys_are_for_administrators(mq: psycopg.Connection, role: str):
    with as_role(mq, role):
        for attempt in (
            "SELECT * FROM skep.list_api_keys()",
            "SELECT * FROM skep.api_keys",
            "SELECT skep._find_api_key('0123456789ab', '')",
            "SELECT skep.revoke_api_key('0123456789ab')",
            "SELECT skep.create_api_key('0123456789ab', 'x', '', 'admin')",
        ):
            with refused("42501"):
                mq.execute(attempt)


def test_an_administrator_makes_keys_but_only_through_the_functions(mq: psycopg.Connection):
    with as_role(mq, "skep_admin"):
        create(mq)
        assert len(find(mq)) == 1
        with refused("42501"):
            mq.execute("UPDATE skep.api_keys SET role = 'admin'")
