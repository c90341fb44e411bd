"""`skep key`."""

import hashlib

import pytest

from skep import Skep
from skep.config import Config
from skep.server.http.auth import Authenticator
from skep.server.http.grants import Role
from tests.cli.conftest import Cli
from tests.cli.process import on_terminal


def test_create_shows_the_key_once(cli: Cli, mq: Skep):
    done = cli("key", "create", "shop", "--role", "write-only")
    assert (done.code, done.stderr, len(done.lines)) == (0, "", 2)
    _, key_id, secret = done.lines[0].split("_")
    assert done.lines[1].startswith(f"key {key_id} of shop: write-only, never expires")
    (key,) = mq.api_keys()
    assert (key.id, key.hash) == (key_id, hashlib.sha256(secret.encode()).digest())
    listed = [cli("key", "list").stdout, cli("key", "list", "--json").stdout]
    assert not any(secret in text or key.hash.hex() in text for text in listed)


async def test_the_server_takes_what_was_created(cli: Cli, mq: Skep):
    made = cli("key", "create", "zoë", "--grant", "orders.*:push,pop", "--grant", "a:b:ack", "--json").json

    async def find(key_id: str, digest: bytes):
        return mq.find_api_key(key_id, digest)

    found = await Authenticator(Config(auth=True), find).identify(f"Bearer {made['token']}")
    assert (found.subject, found.roles) == ("zoë", set())
    assert found.allows("pop", "orders.eu")
    assert found.allows("ack", "a:b")
    assert not found.allows("ack", "orders.eu")
    assert mq.api_keys()[0].last_used_at is not None


def test_rights_and_end(cli: Cli, mq: Skep):
    grants = ("--grant", "orders.*:push", "--grant", "orders.*:pop", "--grant", "mail:")
    made = cli("key", "create", "ci", "--role", "read-only", *grants, "--expires", "90d", "--json").json
    assert made["role"] == Role.READ_ONLY
    assert made["grants"] == {"orders.*": ["push", "pop"], "mail": []}
    assert "hash" not in made
    row = " ".join(cli("key", "list").lines[1].split())
    assert row.startswith(f"{made['id']} ci read-only mail: orders.*:push,pop 0 s ago - expires in 89 d")


def test_list_begins_with_the_newest(cli: Cli, mq: Skep):
    for name in ("one", "two"):
        mq.create_api_key(name, "admin")
    assert [key["name"] for key in cli("key", "list", "--json").json] == ["two", "one"]


def test_revoke_asks(cli: Cli, mq: Skep):
    _, key = mq.create_api_key("shop", "admin")
    done = cli("key", "revoke", key.id, stdin=b"n\n")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Revoke key {key.id} of shop? [y/N] error: nothing was revoked\n")
    assert cli("key", "revoke", key.id, "--yes").stdout == f"key {key.id} of shop revoked\n"
    assert cli("key", "list").lines[1].endswith("revoked")
    assert cli("key", "revoke", key.id, "--yes", "--json").json["revoked_at"]
    assert mq.find_api_key(key.id, key.hash) is None


def test_revoking_nobodys_key(cli: Cli):
    done = cli("key", "revoke", "nobody", "--yes")
    assert (done.code, done.stderr) == (1, 'error: there is no key "nobody"\nhint: `skep key list` shows all\n')


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "a key has a role, grants or both"),
        (["--role", "king"], 'there is no role "king"'),
        (["--grant", "orders"], '"orders" is no grant'),
        (["--grant", ":push"], '":push" is no grant'),
        (["--grant", "orders:fly"], '"orders:fly" is no grant'),
        (["--role", "admin", "--expires", "soon"], '"soon" is not a length of time'),
        (["--role", "admin", "--expires", "9999999d"], "too long a time"),
    ],
)
def test_what_cannot_be_created(cli: Cli, mq: Skep, arguments: list[str], says: str):
    done = cli("key", "create", "shop", *arguments)
    assert (done.code, done.stdout) == (1, "")
    assert says in done.stderr
    assert "hint: " in done.stderr
    assert mq.api_keys() == []


def test_names_cannot_break_out(cli: Cli):
    done = cli("key", "create", "a\r\nX-Evil: 1", "--role", "admin")
    assert (done.code, done.stdout) == (1, "")
    assert "control characters" in done.stderr


def test_the_key_is_whole_on_a_narrow_terminal(database_url: str):
    shown = on_terminal("key", "create", "x" * 250, "--role", "admin", "--database-url", database_url)
    assert len(shown.split()[0]) == len("skep__") + 12 + 64
