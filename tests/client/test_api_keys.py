"""API keys, with both clients."""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from skep import AsyncSkep
from skep.errors import InvalidArgument, NotFound, PermissionDenied


async def test_create_find_and_revoke(mq: AsyncSkep):
    end = datetime.now(UTC) + timedelta(days=1)
    token, made = await mq.create_api_key("shop", "read-only", grants={"orders": ("push",)}, expires_at=end)
    prefix, key_id, secret = token.split("_")
    digest = hashlib.sha256(secret.encode()).digest()
    assert (prefix, key_id, len(secret), made.hash) == ("skep", made.id, 64, digest)
    assert (made.name, made.role, made.grants, made.expires_at) == ("shop", "read-only", {"orders": ["push"]}, end)
    found = await mq.find_api_key(key_id, digest)
    assert found == made
    assert [key.last_used_at is not None for key in await mq.api_keys()] == [True]
    assert (await mq.revoke_api_key(key_id)).revoked_at is not None
    assert await mq.find_api_key(key_id, digest) is None


async def test_no_secret_reaches_the_database(mq: AsyncSkep, db: psycopg.Connection):
    token, _ = await mq.create_api_key("shop", "admin")
    seen = db.execute("SELECT k::text || (SELECT string_agg(query, '') FROM pg_stat_activity) FROM skep.api_keys k")
    assert token.split("_")[2] not in seen.fetchall()[0][0]


async def test_invalid_arguments(mq: AsyncSkep):
    with pytest.raises(InvalidArgument, match="role is unknown"):
        await mq.create_api_key("shop", "king")
    with pytest.raises(InvalidArgument, match='grant of "q"'):
        await mq.create_api_key("shop", grants={"q": ["fly"]})
    with pytest.raises(InvalidArgument):
        await mq.create_api_key("a\0b", "admin")
    with pytest.raises(NotFound):
        await mq.revoke_api_key("nobody")


async def test_a_consumer_cannot_create_keys(clients: Callable[..., AsyncSkep], user_url: Callable[..., str]):
    mq = clients(user_url("skep_consumer", "skep_producer"))
    with pytest.raises(PermissionDenied):
        await mq.create_api_key("shop", "admin")
