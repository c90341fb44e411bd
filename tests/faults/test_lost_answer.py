"""A call is made, its answer is lost with the connection: the client cannot know, and does no harm by asking again."""

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
from tests.faults.wire import Wire, wire
from tests.faults.worker import Face, client

Q = "orders"


@pytest.fixture
def cut(database_url: str) -> Generator[Wire]:
    with wire(database_url) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def tell(request: pytest.FixtureRequest, cut: Wire) -> Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]:
    """Tell a story to a client at the other end of the wire."""
    face: Face = request.param

    def to_a_client(story: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async def tell_it() -> None:
            async with either(client(face, cut.url, poll_interval=0.05)) as mq:
                await story(mq)

        play(tell_it(), with_loop=face == "async")

    return to_a_client


def test_a_buffer_stores_once(cut: Wire, tell: Callable, connect: Callable[..., psycopg.Connection]) -> None:
    """What is accepted is stored, in order and once, though the answers to two of its calls are lost."""

    async def story(mq: Any) -> None:
        async with either(mq.queue(Q).buffer(size=10, delay=60)) as buffer:
            for n in range(30):
                if n in (0, 20):
                    cut.lose_answer(b"skep.push(")
                await settle(buffer.push(n))
                if n % 10 == 9:
                    await settle(buffer.flush())
        assert cut.lost.is_set()
        batch = await settle(mq.queue(Q).pop(batch=100))
        assert [message.payload for message in batch] == list(range(30))

    tell(story)
    assert broken(connect()) == {}


def test_a_push_is_made_again(cut: Wire, tell: Callable) -> None:
    """L5: with a transaction id, the same call says where the message is already."""

    async def story(mq: Any) -> None:
        cut.lose_answer(b"skep.push(")
        with pytest.raises(DatabaseUnavailable) as caught:
            await settle(mq.queue(Q).push("hello", transaction_id="t"))
        assert caught.value.retryable
        receipt = await settle(mq.queue(Q).push("hello", transaction_id="t"))
        assert (receipt.status, receipt.offset) == ("duplicate", 0)
        batch = await settle(mq.queue(Q).pop(batch=10))
        assert [message.payload for message in batch] == ["hello"]

    tell(story)


def test_an_ack_is_stored(cut: Wire, tell: Callable, connect: Callable[..., psycopg.Connection]) -> None:
    """C5: what was acknowledged does not come again; asked again, the client hears that the lease is over."""

    async def story(mq: Any) -> None:
        await settle(mq.queue(Q).push_many(range(10)))
        batch = await settle(mq.queue(Q).pop(group="g", batch=10))
        cut.lose_answer(b"skep.ack_all(")
        with pytest.raises(DatabaseUnavailable):
            await settle(batch.ack())
        assert cut.lost.is_set()
        assert not await settle(mq.queue(Q).pop(group="g"))

    tell(story)
    assert lag(connect()) == {"Default": 0}


def test_a_lease_nobody_heard_of(cut: Wire, tell: Callable) -> None:
    """C6: the messages of a pop whose answer was lost come again when its lease is over."""

    async def story(mq: Any) -> None:
        await settle(mq.queue(Q).push_many(range(10)))
        cut.lose_answer(b"skep.pop(")
        with pytest.raises(DatabaseUnavailable):
            await settle(mq.queue(Q).pop(group="g", batch=10, lease_time=0.5))
        came: list[tuple[int, int]] = []
        while len(came) < 10:
            async with either(await settle(mq.queue(Q).pop(group="g", batch=10, wait=10))) as batch:
                came += [(message.offset, message.attempt) for message in batch]
        assert came == [(n, 2) for n in range(10)]

    tell(story)


@pytest.mark.parametrize("words", [b"skep.pop(", b"skep.ack"], ids=["pop", "answers"])
def test_a_consumer_goes_on(cut: Wire, connect: Callable[..., psycopg.Connection], words: bytes) -> None:
    """C5, C6: handlers get each message once if an answer was lost on its way, and after the lease if a pop was."""
    came: list[int] = []
    with Skep(cut.url, poll_interval=0.05) as mq:

        @mq.consumer(Q, group="g", batch=10, lease_time=0.5)
        def handle(message: Message) -> None:
            came.append(message.payload)

        running = threading.Thread(target=mq.run)
        cut.lose_answer(words)
        mq.queue(Q).push_many(range(50))
        running.start()
        observer = connect()
        until(lambda: cut.lost.is_set() and lag(observer) == {"Default": 0}, "the handlers to be done")
        mq.stop()
        running.join()
    assert came == list(range(50))
    assert broken(connect()) == {}
