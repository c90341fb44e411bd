"""The transport that gathers what is written."""

import asyncio
from typing import Any

import uvloop

from skep.server.http.protocol import Corked


async def written(*, lost: bool) -> tuple[bytes, list[dict[str, Any]]]:
    """Write twice to a connection, which may be lost already; return what arrived, and what fell over."""
    loop = asyncio.get_running_loop()
    fallen: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: fallen.append(context))
    accepted: asyncio.Future[Corked] = loop.create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            accepted.set_result(Corked(transport, loop))

    async with await loop.create_server(Server, "127.0.0.1") as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        transport = await accepted
        if lost:
            transport.abort()
            await asyncio.sleep(0.05)
        transport.write(b"one ")
        transport.write(b"two")
        await asyncio.sleep(0)
        transport.close()
        got = await reader.read()
        writer.close()
    return got, fallen


def test_what_is_written_in_a_turn_arrives():
    assert uvloop.run(written(lost=False)) == (b"one two", [])


def test_a_connection_that_was_lost():
    assert uvloop.run(written(lost=True)) == (b"", [])
