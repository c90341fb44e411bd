"""HTTP as the clients of a round speak it: one connection, and the difference between not sent and not answered."""

import asyncio
import json
from contextlib import suppress
from typing import Any

PATIENCE = 8.0  # seconds for an answer, beside what a long poll waits


class NotSent(Exception):
    """Nobody heard the request."""


class NotAnswered(Exception):
    """It was sent, and nobody knows what became of it."""


class Http:
    """One of the servers; reconnects by itself."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: Any = None, *, wait: float = 0) -> tuple[int, Any]:
        """Return status and answer."""
        reader, writer = await self._connect()
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        try:
            async with asyncio.timeout(PATIENCE + wait):
                writer.write(head.encode() + text)
                return await _answer(reader)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            await self.close()
            raise NotAnswered(repr(error)) from error

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._streams[0].at_eof() or self._streams[1].is_closing():
            await self.close()
            try:
                async with asyncio.timeout(PATIENCE):
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
            except (OSError, TimeoutError) as error:
                raise NotSent(repr(error)) from error
        return self._streams

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, *headers = head.split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in headers if line)}
    text = await reader.readexactly(int(fields.get("content-length", "0")))
    return int(status.split()[1]), json.loads(text) if text else None
