"""The outbox: pushes and acks inside the caller's transaction, with every supported library."""

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import DictRow, dict_row
from sqlalchemy.orm import scoped_session, sessionmaker

from skep import AsyncSkep, Skep
from skep.client.foreign_connection import explain
from skep.errors import InvalidArgument, PayloadTooLarge, PermissionDenied, StaleLease
from skep.message import NewMessage
from skep.upkeep import move_outbox
from tests.client.both import settle
from tests.client.callers import ASYNC, PLAIN, Context, Shop, tell

_numbers = itertools.count(1)
Story = Callable[[Shop], Coroutine[Any, Any, None]]


class ChangeOfMind(Exception):
    pass


@asynccontextmanager
async def failing(transaction: Context, kind: type[Exception]) -> AsyncGenerator[list[Exception]]:
    """Enter a transaction or a savepoint that must end with this error; yield a list that gets the error."""
    caught: list[Exception] = []
    try:
        async with transaction:
            yield caught
    except kind as error:
        caught.append(error)
    else:
        pytest.fail(f"no {kind.__name__}")


def story(told: Story) -> Callable[..., None]:
    """Turn a scenario into a test for every library."""

    def test(kind: str, module_database_url: str) -> None:
        tell(kind, module_database_url, f"orders {next(_numbers)}", told)

    functools.update_wrapper(test, told)
    vars(test)["__signature__"] = inspect.signature(test, follow_wrapped=False)
    return pytest.mark.parametrize("kind", [*PLAIN, *ASYNC])(test)


@story
async def test_commit_publishes_rows_and_messages_together(shop: Shop) -> None:
    """Before the commit no other session sees either; after it all sessions see both."""
    async with shop.caller.transaction():
        await shop.order(1)
        await shop.order(2)
        assert (shop.orders(), await shop.told()) == ([], [])
    assert (shop.orders(), await shop.told()) == ([1, 2], [1, 2])
    async with shop.caller.transaction():
        await shop.order(3)
    assert (shop.orders(), await shop.told()) == ([1, 2, 3], [1, 2, 3])


@story
async def test_rollback_publishes_nothing(shop: Shop) -> None:
    """Neither the row nor its message is stored, and the connection can be used again."""
    async with failing(shop.caller.transaction(), ChangeOfMind):
        await shop.order(1)
        raise ChangeOfMind
    assert (shop.orders(), await shop.told()) == ([], [])
    async with shop.caller.transaction():
        await shop.order(2)
    assert (shop.orders(), await shop.told()) == ([2], [2])


@story
async def test_a_savepoint_rolls_back_only_its_own_messages(shop: Shop) -> None:
    """Messages of a released savepoint are published, those of a rolled back one are not, also if nested."""
    async with shop.caller.transaction():
        await shop.order(1)
        async with failing(shop.caller.savepoint(), ChangeOfMind):
            await shop.order(2)
            async with shop.caller.savepoint():
                await shop.order(3)
            raise ChangeOfMind
        async with shop.caller.savepoint():
            await shop.order(4)
            async with failing(shop.caller.savepoint(), ChangeOfMind):
                await shop.order(5)
                raise ChangeOfMind
        await shop.order(6)
    assert (shop.orders(), await shop.told()) == ([1, 4, 6], [1, 4, 6])


@story
async def test_many_messages_with_every_field(shop: Shop) -> None:
    """push_many keeps the order in every partition; partition, headers, trace and transaction ids are stored."""
    trace = uuid4()
    rich = NewMessage({"n": 1}, "partition", transaction_id="once", headers={"a": "ü%(x)s:y"}, trace_id=trace)
    async with shop.caller.transaction():
        assert await settle(shop.queue.push_many([{"n": 0}, rich, rich, {"n": 2}], connection=shop.connection)) is None
        await settle(shop.queue.push_many([], connection=shop.connection))
    batch = await settle(shop.queue.pop(batch=10, partitions=2))
    by_partition = sorted((message.partition, message.offset, message.payload["n"]) for message in batch)
    assert by_partition == [("Default", 0, 0), ("Default", 1, 2), ("partition", 0, 1)]
    (found,) = [message for message in batch if message.partition == "partition"]
    assert (found.transaction_id, found.headers, found.trace_id) == ("once", {"a": "ü%(x)s:y"}, trace)


@story
async def test_an_ack_commits_with_the_rows_of_its_handler(shop: Shop) -> None:
    """Exactly once: the rows, the next message and the ack of the last one are in one transaction."""
    await settle(shop.queue.push_many([{"number": n} for n in range(3)]))
    batch = await settle(shop.queue.pop(group="billing", batch=10))
    async with failing(shop.caller.transaction(), ChangeOfMind):
        await shop.order(7)
        await settle(batch.ack(connection=shop.connection))
        raise ChangeOfMind
    assert (await unfinished(shop), shop.orders(), await shop.told()) == (3, [], [0, 1, 2])
    async with shop.caller.transaction():
        await shop.order(8)
        await settle(batch.ack(connection=shop.connection))
    assert (await unfinished(shop), shop.orders(), await shop.told()) == (1, [8], [0, 1, 2, 8])
    assert not batch.open


@story
async def test_every_kind_of_ack(shop: Shop) -> None:
    """One message is completed, one failed, one dead-lettered, each in a transaction of the caller."""
    await settle(shop.queue.push_many([{"number": n} for n in range(4)]))
    batch = await settle(shop.queue.pop(group="billing", batch=10))
    async with shop.caller.transaction():
        await settle(batch.ack(batch[0], connection=shop.connection))
        await settle(batch.fail(batch[1], ValueError("is bad"), connection=shop.connection))
        await settle(batch.dead_letter(batch[2], "100% worse", connection=shop.connection))
        assert batch.open
        await settle(batch.ack(connection=shop.connection))
    dead = await settle(shop.mq.dead_letters(queue=shop.name))
    assert {letter.offset: letter.error for letter in dead} == {1: "ValueError: is bad", 2: "100% worse"}
    assert await unfinished(shop) == 0


@story
async def test_a_payload_that_is_not_json_is_refused_before_the_call(shop: Shop) -> None:
    """The error names the item, and the caller's transaction can continue."""
    async with shop.caller.transaction():
        await shop.order(1)
        for bad in ({1, 2}, object(), float("nan"), "\ud800", "NUL \0", {"deep": [UUID(int=1), {"\0": 1}]}):
            with pytest.raises(InvalidArgument, match="item 1"):
                await settle(shop.queue.push_many([{"fine": True}, bad], connection=shop.connection))
        await shop.order(2)
    assert (shop.orders(), await shop.told()) == ([1, 2], [1, 2])


@story
async def test_a_refusal_of_the_database_is_an_error_of_skep(shop: Shop) -> None:
    """The error is one of Skep, and its cause is the error of the library."""
    wrong = [NewMessage(1, partition="x" * 256), NewMessage(1, transaction_id=""), NewMessage(1, trace_id="no uuid")]
    for message in wrong:
        async with failing(shop.caller.transaction(), InvalidArgument) as caught:
            await shop.order(1)
            await settle(shop.queue.push_many([message], connection=shop.connection))
        assert caught[0].__cause__ is not None
    assert (shop.orders(), await shop.told()) == ([], [])

    async with failing(shop.caller.transaction(), PermissionDenied):
        await shop.caller.execute("SET LOCAL ROLE pg_monitor")
        await settle(shop.queue.push(1, connection=shop.connection))
    assert await shop.told() == []


@story
async def test_an_error_found_at_commit_fails_the_commit(shop: Shop) -> None:
    """A payload exceeds the limit of its queue: the library raises its own error, and everything is rolled back."""
    await settle(shop.queue.configure(max_payload_bytes=1000))
    async with failing(shop.caller.transaction(), Exception) as caught:
        await shop.order(1)
        await settle(shop.queue.push("x" * 2000, connection=shop.connection))
    assert isinstance(explain(caught[0]), PayloadTooLarge)
    assert (shop.orders(), await shop.told()) == ([], [])


@story
async def test_an_ended_lease_is_refused(shop: Shop) -> None:
    """A late ack fails with its transaction, and the batch is lost."""
    await settle(shop.queue.push({"number": 0}))
    batch = await settle(shop.queue.pop(group="billing"))
    await settle(shop.queue.seek("billing", "beginning"))
    async with failing(shop.caller.transaction(), StaleLease):
        await shop.caller.execute(f"INSERT INTO orders (shop, number) VALUES ('{shop.name}', 1)")
        await settle(batch.ack(connection=shop.connection))
    assert batch.lost
    assert not batch.open
    assert (await unfinished(shop), shop.orders()) == (1, [])


@story
async def test_a_connection_of_the_other_kind_is_refused(shop: Shop) -> None:
    """Asynchronous connections are for AsyncSkep, others for Skep; nothing is sent on either."""
    other: Any = (Skep if isinstance(shop.mq, AsyncSkep) else AsyncSkep)(shop.url)
    with pytest.raises(InvalidArgument, match="expected an? (a|)synchronous connection, got") as caught:
        await settle(other.queue(shop.name).push({"number": 1}, connection=shop.connection))
    assert "AsyncSkep" in (caught.value.hint or "")
    assert await shop.told() == []


async def unfinished(shop: Shop) -> int:
    """Return the lag of the group."""
    lags = await settle(shop.queue.lag("billing"))
    return sum(lag.lag for lag in lags)


@pytest.mark.parametrize("thing", ["postgresql://", 7, object()], ids=["a URL", "a number", "an object"])
def test_an_object_that_is_not_a_connection_is_refused(module_database_url: str, thing: object) -> None:
    with Skep(module_database_url) as mq, pytest.raises(InvalidArgument, match="as a connection") as caught:
        mq.queue("orders").push(1, connection=thing)
    assert "psycopg" in (caught.value.hint or "")


def test_without_a_transaction_it_is_published_at_once(module_database_url: str) -> None:
    """An autocommit connection commits every statement."""
    with Skep(module_database_url) as mq, psycopg.connect(module_database_url, autocommit=True) as connection:
        mq.queue("at once").push("now", connection=connection)
        assert [message.payload for message in mq.queue("at once").pop()] == ["now"]


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor], ids=lambda factory: factory.__name__)
def test_cursor_factories_of_the_caller_have_no_effect(module_database_url: str, factory: Any) -> None:
    """A connection may have its own cursor and row factories; Skep does not depend on them."""
    with (
        Skep(module_database_url) as mq,
        psycopg.Connection[DictRow].connect(
            module_database_url, cursor_factory=factory, row_factory=dict_row
        ) as connection,
    ):
        mq.queue(factory.__name__).push("mine", connection=connection)
        connection.commit()
        assert [message.payload for message in mq.queue(factory.__name__).pop()] == ["mine"]


def test_a_scoped_session(module_database_url: str) -> None:
    """Web frameworks use it as a proxy for the session of the thread."""
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(module_database_url))
    session = scoped_session(sessionmaker(engine))
    with Skep(module_database_url) as mq:
        mq.queue("scoped").push("dropped", connection=session)
        session.rollback()
        mq.queue("scoped").push("kept", connection=session)
        session.commit()
        assert [message.payload for message in mq.queue("scoped").pop(batch=10)] == ["kept"]
    session.remove()
    engine.dispose()


STRICT = [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name.lower())
async def test_a_strict_transaction_is_published_by_upkeep(
    level: psycopg.IsolationLevel, db: psycopg.Connection, module_database_url: str
) -> None:
    """It commits although others push meanwhile, and a consumer wakes when upkeep has published its messages."""
    with Skep(module_database_url) as mq, psycopg.connect(module_database_url) as connection:
        connection.isolation_level = level
        db.execute("CREATE TABLE IF NOT EXISTS strict_orders (id integer)")
        connection.execute("INSERT INTO strict_orders VALUES (1)")
        mq.queue("strict").push("mine", connection=connection)
        mq.queue("strict").push("theirs")
        connection.commit()
        assert db.execute("SELECT count(*) FROM strict_orders").fetchall() == [(1,)]
        db.execute("DROP TABLE strict_orders")
        assert [message.payload for message in mq.queue("strict").pop(batch=10)] == ["theirs"]
        assert mq.outbox_status().waiting == 1
    async with AsyncSkep(module_database_url) as mq:
        queue = mq.queue("strict")
        assert [message.payload for message in await queue.pop(group="waiting", auto_ack=True)] == ["theirs"]
        asked = asyncio.create_task(queue.pop(group="waiting", wait=20))
        await asyncio.sleep(0.1)
        assert await move_outbox(mq) == "published 1 messages of the outbox"
        assert [message.payload for message in await asked] == ["mine"]
        assert await move_outbox(mq) is None
        assert (await mq.outbox_status()).waiting == 0
        assert [message.payload for message in await queue.pop(group="late", batch=10)] == ["theirs", "mine"]
