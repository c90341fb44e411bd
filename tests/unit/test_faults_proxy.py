"""The proxies of the faults suite: the effect of each network fault on a call."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from faults.proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


class Echo:
    """A server that returns each line, and records it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.received.append(line)
                writer.write(line)
        except ConnectionError:
            pass
        writer.close()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncGenerator[Proxy]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    made = Proxy("test", lambda: server.sockets[0].getsockname()[1])
    await made.start()
    yield made
    await made.close()
    server.close()


@pytest.fixture
async def connect(proxy: Proxy) -> AsyncGenerator[Connect]:
    """Connect through the proxy; all connections are closed after the test."""
    opened: list[Streams] = []

    async def open_one() -> Streams:
        opened.append(await asyncio.open_connection("127.0.0.1", proxy.port))
        return opened[-1]

    yield open_one
    for _, writer in opened:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def call(streams: Streams, line: bytes = b"hello\n") -> bytes:
    reader, writer = streams
    writer.write(line)
    return await reader.readline()


async def test_data_is_forwarded(connect: Connect):
    streams = await connect()
    assert await call(streams) == b"hello\n"


async def test_cut_and_refused(proxy: Proxy, connect: Connect):
    streams = await connect()
    await call(streams)
    proxy.refusing = True
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        await call(streams)
    with pytest.raises(ConnectionResetError):
        await call(await connect())
    proxy.heal()
    assert await call(await connect()) == b"hello\n"


async def test_data_in_a_black_hole_arrives_later(proxy: Proxy, echo: Echo, connect: Connect):
    streams = await connect()
    await call(streams)
    proxy.black_hole()
    response = asyncio.create_task(call(streams, b"late\n"))
    await asyncio.wait([response], timeout=0.2)
    assert not response.done()
    assert echo.received == [b"hello\n"]
    proxy.heal()
    assert await response == b"late\n"


async def test_a_response_is_lost_after_the_call(proxy: Proxy, echo: Echo, connect: Connect):
    streams, other = await connect(), await connect()
    proxy.lose_response(b"COMMIT", early=False)
    assert await call(streams) == b"hello\n"
    with pytest.raises(ConnectionResetError):
        await call(streams, b"COMMIT\n")
    assert proxy.lost.is_set()
    assert echo.received == [b"hello\n", b"COMMIT\n"]
    assert await call(other, b"COMMIT\n") == b"COMMIT\n"  # only the first


async def test_delay(proxy: Proxy, connect: Connect):
    streams = await connect()
    proxy.delay = 0.1
    begin = asyncio.get_running_loop().time()
    await call(streams)
    assert asyncio.get_running_loop().time() - begin >= 0.1
