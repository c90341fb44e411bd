"""Wires that can be cut: a proxy stands between clients and servers, and between those and the database.

pass         as if it were not there
cut          every connection is reset
refuse       and so is every new one
hole         nothing gets through, and nobody is told
delay        everything takes longer
lose_answer  the next call with these words is made, and its answer is lost with the connection
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
    """Listens on a port of its own and passes on to a target, which may change."""

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
        self.early = False  # lose the connection right after the call was sent, not after it was made
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

    def hole(self) -> None:
        self.passing.clear()

    def lose_answer(self, words: bytes, *, early: bool) -> None:
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
        self._doomed = False
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    async def run(self, port: int) -> None:
        with contextlib.suppress(OSError):
            there, upstream = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
            self._ends.append(upstream)
            ask = asyncio.create_task(self._pump(self._reader, upstream, self._asked))
            answer = asyncio.create_task(self._pump(there, self._ends[0], self._answered))
            await asyncio.wait((ask, answer), return_when=asyncio.FIRST_COMPLETED)
            ask.cancel()
            answer.cancel()
            await asyncio.gather(ask, answer, return_exceptions=True)
        for end in self._ends:
            end.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[bytes], bool]
    ) -> None:
        with contextlib.suppress(OSError):
            while said := await reader.read(CHUNK):
                await self._proxy.passing.wait()
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay * random.uniform(0.5, 1.5))
                if not passes(said):
                    self.cut()
                    return
                writer.write(said)
                await writer.drain()
                if self._doomed and self._proxy.early:
                    self._lose()
                    return

    def _asked(self, said: bytes) -> bool:
        if self._proxy.words is not None and self._proxy.words in said:
            self._proxy.words = None
            self._doomed = True
        return True

    def _answered(self, _said: bytes) -> bool:
        """The other side speaks when the call is done and committed, and not before."""
        if self._doomed:
            self._proxy.lost.set()
        return not self._doomed

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
