"""A call is executed, but the connection is lost before the response: the client can safely repeat the call."""

import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import psycopg
import pytest

from skep import Message, Skep
from skep.errors import DatabaseUnavailable
from tests.client.both import either, play, settle
from tests.engine.threads import until
from tests.engine.verbs import broken, lag
from tests.faults.tcp_proxy import TcpProxy, tcp_proxy
from tests.faults.worker import Face, client

Q = "orders"


@pytest.fixture
def proxy(database_url: str) -> Generator[TcpProxy]:
    with tcp_proxy(database_url) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def run(
    request: pytest.FixtureRequest, proxy: TcpProxy
) -> Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]:
    """Run a test with a client behind the proxy."""
    face: Face = request.param

    def to_a_client(scenario: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async def run_it() -> None:
            async with either(client(face, proxy.url, poll_interval=0.05)) as mq:
                await scenario(mq)

        play(run_it(), with_loop=face == "async")

    return to_a_client


def test_a_buffer_stores_once(proxy: TcpProxy, run: Callable, connect: Callable[..., psycopg.Connection]) -> None:
    """Accepted messages are stored once, in order, although the responses to two calls are lost."""

    async def scenario(mq: Any) -> None:
        async with either(mq.queue(Q).buffer(size=10, delay=60)) as buffer:
            for n in range(30):
                if n in (0, 20):
                    proxy.lose_response(b"skep.push(")
                await settle(buffer.push(n))
                if n % 10 == 9:
                    await settle(buffer.flush())
        assert proxy.lost.is_set()
        batch = await settle(mq.queue(Q).pop(batch=100))
        assert [message.payload for message in batch] == list(range(30))

    run(scenario)
    assert broken(connect()) == {}


def test_a_push_is_repeated(proxy: TcpProxy, run: Callable) -> None:
    """With a transaction id, the repeated call returns the offset of the stored message."""

    async def scenario(mq: Any) -> None:
        proxy.lose_response(b"skep.push(")
        with pytest.raises(DatabaseUnavailable) as caught:
            await settle(mq.queue(Q).push("hello", transaction_id="t"))
        assert caught.value.retryable
        receipt = await settle(mq.queue(Q).push("hello", transaction_id="t"))
        assert (receipt.status, receipt.offset) == ("duplicate", 0)
        batch = await settle(mq.queue(Q).pop(batch=10))
        assert [message.payload for message in batch] == ["hello"]

    run(scenario)


def test_an_ack_is_stored(proxy: TcpProxy, run: Callable, connect: Callable[..., psycopg.Connection]) -> None:
    """The acknowledged messages are not delivered again."""

    async def scenario(mq: Any) -> None:
        await settle(mq.queue(Q).push_many(range(10)))
        batch = await settle(mq.queue(Q).pop(group="g", batch=10))
        proxy.lose_response(b"skep.ack_all(")
        with pytest.raises(DatabaseUnavailable):
            await settle(batch.ack())
        assert proxy.lost.is_set()
        assert not await settle(mq.queue(Q).pop(group="g"))

    run(scenario)
    assert lag(connect()) == {"Default": 0}


def test_a_pop_whose_response_was_lost(proxy: TcpProxy, run: Callable) -> None:
    """Its messages are delivered again when its lease has expired."""

    async def scenario(mq: Any) -> None:
        await settle(mq.queue(Q).push_many(range(10)))
        proxy.lose_response(b"skep.pop(")
        with pytest.raises(DatabaseUnavailable):
            await settle(mq.queue(Q).pop(group="g", batch=10, lease_time=0.5))
        came: list[tuple[int, int]] = []
        while len(came) < 10:
            async with either(await settle(mq.queue(Q).pop(group="g", batch=10, wait=10))) as batch:
                came += [(message.offset, message.attempt) for message in batch]
        assert came == [(n, 2) for n in range(10)]

    run(scenario)


@pytest.mark.parametrize("words", [b"skep.pop(", b"skep.ack"], ids=["pop", "acks"])
def test_a_consumer_continues(proxy: TcpProxy, connect: Callable[..., psycopg.Connection], words: bytes) -> None:
    """Handlers get each message once if the response to an ack was lost; after the lease if that to a pop was."""
    came: list[int] = []
    with Skep(proxy.url, poll_interval=0.05) as mq:

        @mq.consumer(Q, group="g", batch=10, lease_time=0.5)
        def handle(message: Message) -> None:
            came.append(message.payload)

        running = threading.Thread(target=mq.run)
        proxy.lose_response(words)
        mq.queue(Q).push_many(range(50))
        running.start()
        observer = connect()
        until(lambda: proxy.lost.is_set() and lag(observer) == {"Default": 0}, "the handlers to process everything")
        mq.stop()
        running.join()
    assert came == list(range(50))
    assert broken(connect()) == {}
