"""Mistakes of programs: a buffer that is not closed, too many open files, a failed ack that is ignored."""

import os
import resource
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from skep import Skep, SkepError
from skep.errors import MessagesRefused
from tests.client.both import either, play, settle
from tests.engine.threads import until
from tests.faults.worker import Face, client

FACES: list[Face] = ["sync", "async"]


@pytest.mark.parametrize("face", FACES)
def test_closing_the_client_flushes_its_buffers(database_url: str, face: Face) -> None:
    """Accepted messages are stored, and a program with an open buffer ends."""

    async def forget() -> None:
        async with either(client(face, database_url)) as mq:
            buffer = mq.queue("orders").buffer(delay=60)
            await settle(buffer.push("kept"))
        with pytest.raises(SkepError, match="closed"):
            await settle(buffer.push("too late"))

    play(forget(), with_loop=face == "async")
    with Skep(database_url) as mq:
        assert [message.payload for message in mq.queue("orders").pop(batch=10)] == ["kept"]


def test_a_refused_message_does_not_keep_the_client_from_closing(database_url: str) -> None:
    """close() raises the error; the other messages are stored, and the pool is closed."""
    mq = Skep(database_url)
    mq.queue("small").configure(max_payload_bytes=100)
    buffers = [mq.queue(name).buffer(delay=60) for name in ("small", "orders", "small")]
    for buffer in buffers:
        buffer.push("x" * 200)
    with pytest.raises(MessagesRefused):
        mq.close()
    with pytest.raises(SkepError, match="closed"):
        mq.queue("orders").push("too late")
    with Skep(database_url) as another:
        assert len(another.queue("orders").pop(batch=10)) == 1


@pytest.fixture
def many_files() -> Generator[None]:
    """Open more files than select() supports."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 1500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip("this machine does not allow 1500 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, null)
        for _ in range(1100):
            stack.callback(os.close, os.dup(null))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_many_open_files(database_url: str) -> None:
    with Skep(database_url) as mq:
        for n in range(3):
            mq.queue("orders").push(n)
        assert [message.payload for message in mq.queue("orders").pop(batch=10)] == [0, 1, 2]


def test_a_handler_that_ignores_a_failed_ack(database_url: str, connect: Callable[..., psycopg.Connection]) -> None:
    """Its ack could not be sent (wrong type of connection): the batch is delivered again, not completed."""
    came: list[int] = []
    with Skep(database_url, poll_interval=0.05) as mq:

        @mq.consumer("orders", group="g", per="batch")
        def handle(batch: Any) -> None:
            came.append(len(batch))
            if len(came) == 1:
                with pytest.raises(SkepError):
                    batch.ack(connection="nonsense")

        mq.queue("orders").push_many([1, 2])
        running = threading.Thread(target=mq.run)
        running.start()
        until(lambda: [partition.lag for partition in mq.queue("orders").lag("g")] == [0], "the batch to be completed")
        mq.stop()
        running.join()
    assert came == [2, 2]
