"""TCP proxies between clients and servers, and between these and the database, which inject network faults.

pass           forward everything
cut            reset every connection
refuse         reset every new connection too
black_hole     forward nothing, without closing connections
delay          forward everything later
lose_response  forward the next call with these words, then reset the connection before the response
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable

CHUNK = 65536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a close is a reset


class Proxy:
    """Listens on a port and forwards connections to a target, which may change."""

    def __init__(self, name: str, target: Callable[[], int]) -> None:
        self.name = name
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        self.port = 0
        self.refusing = False
        self.delay = 0.0
        self.passing = asyncio.Event()
        self.passing.set()
        self.words: bytes | None = None
        self.early = False  # reset the connection right after the call was sent, not after it was executed
        self.lost = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.heal()
        self.cut()
        await asyncio.gather(*(link.task for link in tuple(self._links)), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            reset(writer)
            return
        link = Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run(self._target())
        finally:
            self._links.discard(link)

    def cut(self) -> int:
        for link in tuple(self._links):
            link.cut()
        return len(self._links)

    def black_hole(self) -> None:
        self.passing.clear()

    def lose_response(self, words: bytes, *, early: bool) -> None:
        self.words, self.early = words, early
        self.lost.clear()

    def heal(self) -> None:
        self.refusing, self.delay, self.words = False, 0.0, None
        self.passing.set()


class Link:
    """One connection through a proxy."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._ends = [writer]
        self._reader = reader
        self._loses_response = False
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def run(self, port: int) -> None:
        with contextlib.suppress(OSError):
            there, upstream = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
            self._ends.append(upstream)
            requests = asyncio.create_task(self._pump(self._reader, upstream, self._requested))
            responses = asyncio.create_task(self._pump(there, self._ends[0], self._responded))
            await asyncio.wait((requests, responses), return_when=asyncio.FIRST_COMPLETED)
            requests.cancel()
            responses.cancel()
            await asyncio.gather(requests, responses, return_exceptions=True)
        for end in self._ends:
            end.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[bytes], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._proxy.passing.wait()
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay * random.uniform(0.5, 1.5))
                if not passes(data):
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()
                if self._loses_response and self._proxy.early:
                    self._lose()
                    return

    def _requested(self, data: bytes) -> bool:
        if self._proxy.words is not None and self._proxy.words in data:
            self._proxy.words = None
            self._loses_response = True
        return True

    def _responded(self, _data: bytes) -> bool:
        """Return false for the response to be lost: it is sent only after the call was executed and committed."""
        if self._loses_response:
            self._proxy.lost.set()
        return not self._loses_response

    def _lose(self) -> None:
        self._proxy.lost.set()
        self.cut()

    def cut(self) -> None:
        for end in self._ends:
            reset(end)


def reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
