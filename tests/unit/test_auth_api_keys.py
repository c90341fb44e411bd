"""API keys: which are good, how often the database is asked, and how soon one is forgotten."""

import asyncio
import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from skep.config import Config
from skep.errors import DatabaseUnavailable, Unauthenticated
from skep.message import ApiKey
from skep.server.http import api_keys
from skep.server.http.api_keys import ApiKeys
from skep.server.http.auth import Authenticator
from skep.server.http.grants import Role

ID, SECRET = "0123456789ab", "5e" * 32
TOKEN = f"skep_{ID}_{SECRET}"
HASH = hashlib.sha256(SECRET.encode()).digest()
KEY = ApiKey(ID, "shop", HASH, "write-only", None, datetime.now(UTC), None, None, None)


class Table:
    """The table of keys, which counts how often it is asked, and a clock."""

    def __init__(self, *keys: ApiKey) -> None:
        self.keys = {key.id: key for key in keys}
        self.asked: list[tuple[str, bytes]] = []
        self.down = False
        self.now = 0.0
        self.checks = ApiKeys(self.find, lambda: self.now)

    async def find(self, key_id: str, digest: bytes) -> ApiKey | None:
        self.asked.append((key_id, digest))
        await asyncio.sleep(0)
        if self.down:
            raise DatabaseUnavailable("no database")
        return self.keys.get(key_id)

    async def refusal(self, token: str) -> str:
        with pytest.raises(Unauthenticated) as caught:
            await self.checks.identify(token)
        return caught.value.message


@pytest.mark.parametrize("form", ["Bearer {}", "{}"])
async def test_a_key_is_an_identity(form: str):
    table = Table(KEY)
    found = await Authenticator(Config(auth=True), table.find).identify(form.format(TOKEN))
    assert (found.subject, found.roles) == ("shop", {Role.WRITE_ONLY})
    assert table.asked == [(ID, HASH)]


async def test_grants_of_a_key():
    found = await Table(replace(KEY, role=None, grants={"orders.*": ["pop"]})).checks.identify(TOKEN)
    assert found.allows("pop", "orders.eu")
    assert not found.allows("pop", "mail")


@pytest.mark.parametrize("secret", ["00" * 32, SECRET[:-1] + "f", SECRET[::-1]])
async def test_a_wrong_secret_is_refused_also_while_the_key_is_known(secret: str):
    table = Table(KEY)
    wrong = f"skep_{ID}_{secret}"
    assert await table.refusal(wrong) == "Invalid API key"
    await table.checks.identify(TOKEN)
    assert await table.refusal(wrong) == "Invalid API key"


async def test_a_hash_is_no_secret():
    """Who has read the table cannot call."""
    assert await Table(KEY).refusal(f"skep_{ID}_{HASH.hex()}") == "Invalid API key"


async def test_an_unknown_key_is_refused():
    """Also one whose hash would be that of nothing."""
    table = Table()
    assert await table.refusal(TOKEN) == "Invalid API key"
    assert await table.refusal(f"skep_{'f' * 12}_{'0' * 64}") == "Invalid API key"


@pytest.mark.parametrize(
    "token",
    [
        "skep_",
        "skep__",
        f"skep_{ID}",
        f"skep_{ID}_",
        f"skep_{ID}_{SECRET}0",
        f"skep_{ID}_{SECRET[:-1]}",
        f"skep_{ID.upper()}_{SECRET}",
        f"skep_{ID}_{SECRET.upper()}",
        f"skep_{ID[:-1]}'_{SECRET}",
        f"skep_{ID}_{SECRET}\n",
        f"skep_{ID}_{'٣' * 64}",
    ],
)
async def test_what_is_no_key_is_refused_without_asking(token: str):
    table = Table(KEY)
    assert await table.refusal(token) == "Malformed API key"
    assert table.asked == []


@pytest.mark.parametrize("change", [{"role": "king"}, {"grants": ["push"]}, {"grants": {"q": ["fly"]}}])
async def test_rights_that_cannot_be_read_are_refused_not_ignored(change: dict[str, Any]):
    assert (await Table(replace(KEY, **change)).refusal(TOKEN)).startswith("Malformed API key")


async def test_a_revoked_key_is_forgotten_within_five_seconds():
    table = Table(KEY)
    await table.checks.identify(TOKEN)
    table.keys.clear()
    table.now = 4.9
    await table.checks.identify(TOKEN)
    table.now = 5
    assert await table.refusal(TOKEN) == "Invalid API key"
    assert len(table.asked) == 2


async def test_many_at_once_ask_once():
    table = Table(KEY)
    asking = [asyncio.create_task(table.checks.identify(TOKEN)) for _ in range(100)]
    await asyncio.sleep(0)
    asking[0].cancel()  # who goes away takes nothing from the others
    assert {found.subject for found in await asyncio.gather(*asking[1:])} == {"shop"}
    assert len(table.asked) == 1


async def test_a_failure_is_not_remembered():
    table = Table(KEY)
    table.down = True
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            await table.checks.identify(TOKEN)
    table.down = False
    assert (await table.checks.identify(TOKEN)).subject == "shop"


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api_keys, "MOST_REMEMBERED", 3)
    table = Table(KEY)
    for number in range(10):
        await table.refusal(f"skep_{number:012x}_{SECRET}")
    assert len(table.checks._known) == 3


def test_the_hash_is_not_shown():
    assert "hash" not in repr(KEY)
