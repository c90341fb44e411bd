"""Errors have the right class of Skep, a clear message and a hint."""

import socket
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from skep import AsyncSkep, SkepError
from skep.errors import (
    ConfigError,
    DatabaseUnavailable,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SchemaMismatch,
)
from tests.client.faces import Face, make
from tests.client.verbs import refused

Clients = Callable[..., AsyncSkep]


async def test_an_empty_database(clients: Clients, empty_database_url: str):
    """The hint is the command to run."""
    with refused(SchemaMismatch) as caught:
        await clients(empty_database_url).queue("q").push(1)
    assert "skep install" in caught.error.hint
    assert not caught.error.retryable


async def test_an_empty_database_is_found_at_the_start_of_the_block(clients: Clients, empty_database_url: str):
    with refused(SchemaMismatch):
        await clients(empty_database_url).__aenter__()


async def test_a_port_without_a_server(clients: Clients):
    """The error is raised at once, at every try, and is retryable."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        mq = clients(f"postgresql://nobody@127.0.0.1:{unused.getsockname()[1]}/x")
        for _ in range(2):
            with refused(DatabaseUnavailable) as caught:
                await mq.queue("q").pop()
            assert caught.error.retryable


async def test_a_database_that_does_not_exist(clients: Clients, module_database_url: str):
    with pytest.raises((SkepError, psycopg.OperationalError), match="does not exist"):
        await clients(make_conninfo(module_database_url, dbname="nowhere")).queue("q").push(1)


@pytest.mark.parametrize("url", ["", "mysql://host/db", "postgresql://host:port/db", "no url at all"])
def test_a_malformed_url(face: Face, url: str):
    """It is refused by the constructor, not by the first call."""
    with refused(ConfigError) as caught:
        make(face, url)
    assert "expected postgresql://" in caught.error.hint


async def test_a_closed_client(mq: AsyncSkep):
    await mq.queue("q").push(1)
    await mq.close()
    await mq.close()
    for call in (mq.queue("q").push(1), mq.queue("q").pop(), mq.queue("q").pop(wait=1), mq.lag("g")):
        with refused(SkepError, "client is closed"):
            await call


async def test_a_client_that_was_never_used_can_be_closed(clients: Clients):
    mq = clients()
    await mq.close()
    with refused(SkepError, "client is closed"):
        await mq.queue("q").push(1)


async def test_what_does_not_exist(mq: AsyncSkep):
    with refused(NotFound, "nothing") as caught:
        await mq.queue("nothing").status()
    assert caught.error.hint
    assert not await mq.queue("nothing").delete()
    assert not await mq.queue("nothing").delete_partition("p")
    assert await mq.queues("nothing") == []
    assert await mq.lag("nobody", "nothing") == []


async def test_wrong_arguments(mq: AsyncSkep):
    """The driver or the database finds them."""
    q = mq.queue("q")
    await q.push(1)
    batch = await q.pop()
    for wrong in (
        lambda: mq.queue("").push(1),
        lambda: mq.queue("x" * 256).push(1),
        lambda: mq.queue("a\0b").pop(),
        lambda: q.pop(batch=0),
        lambda: q.pop(batch=-1),
        lambda: q.pop(partitions=0),
        lambda: q.pop(lease_time=-1),
        lambda: q.pop(group=""),
        lambda: q.configure(colour="red"),
        lambda: q.configure(retry_limit=-1),
        lambda: q.configure(semantics="sometimes"),
        lambda: batch.extend(-1),
        lambda: batch.extend(10**9),
    ):
        with refused(InvalidArgument) as caught:
            await wrong()
        assert caught.error.message
    await batch.ack()


async def test_an_unknown_option_is_refused_with_the_known_ones(mq: AsyncSkep):
    with refused(InvalidArgument, "colour") as caught:
        await mq.queue("q").configure(colour="red")
    assert "retry_limit" in caught.error.hint


async def test_a_user_without_rights(clients: Clients, stranger: str):
    """Every call raises the error, which is not retryable."""
    mq = clients(stranger)
    for call in (mq.queue("q").push(1), mq.queue("q").pop(), mq.subscribe("g", "q"), mq.queue("q").delete()):
        with refused(PermissionDenied) as caught:
            await call
        assert not caught.error.retryable


async def test_the_cause_is_kept(mq: AsyncSkep):
    """The error of the database is the cause."""
    with refused(InvalidArgument) as caught:
        await mq.queue("").push(1)
    assert isinstance(caught.error.__cause__, psycopg.Error)
