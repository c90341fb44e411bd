"""The HTTP client of a round. It tells requests that were not sent from those without a response."""

import asyncio
import json
from contextlib import suppress
from typing import Any

PATIENCE = 8.0  # seconds for a response, in addition to the wait of a long poll


class NotSent(Exception):
    """The request was not sent."""


class NoResponse(Exception):
    """The request was sent, but there was no response."""


class Http:
    """A connection to one server, which reconnects by itself."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: Any = None, *, wait: float = 0) -> tuple[int, Any]:
        """Return status and body of the response."""
        reader, writer = await self._connect()
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        try:
            async with asyncio.timeout(PATIENCE + wait):
                writer.write(head.encode() + text)
                return await _read_response(reader)
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            await self.close()
            raise NoResponse(repr(error)) from error

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


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status, *headers = head.split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in headers if line)}
    text = await reader.readexactly(int(fields.get("content-length", "0")))
    return int(status.split()[1]), json.loads(text) if text else None
