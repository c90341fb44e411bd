"""HTTP on a connection: uvicorn's protocol, with responses in one write and with timeouts.

A client that owes the rest of a request, or takes nothing of an answer, is looked at every few seconds and let go when
nothing has moved since. A client that waits for a response, or is idle between two requests, has no timeout.
"""

import asyncio
import sys
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

PATIENCE = 10.0  # seconds between two checks
PROGRESS = 4096  # bytes that a request has to grow by in that time
MAX_HEAD_BYTES = 128 * 1024


class Corked:
    """A transport that joins all writes of one turn of the loop."""

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        data = b"".join(self._parts)
        self._parts.clear()
        if data and not self._transport.is_closing():  # uvloop's raises when it is closed
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """uvicorn's, over a corked transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(Corked(transport, self.loop))  # pyright: ignore[reportArgumentType]
        self._extensions: dict[str, dict[object, object]] = {"skep": {"is_gone": transport.is_closing}}
        self._is_incomplete = True  # the client has not sent all of a request
        self._moved = 0  # bytes since the last check
        self._loose = 0  # bytes since the last piece of a body: of a head, or of what follows the last chunk
        self._unsent = 0
        self._looking = self.loop.call_later(PATIENCE, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._looking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved += len(data)
        self._loose += len(data)
        self._data = data
        super().data_received(data)
        if self._is_incomplete and self._loose > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the head of the request is larger than {MAX_HEAD_BYTES} bytes", "head_too_large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._is_incomplete = True
        self._moved = PROGRESS  # it has just begun
        self._loose = 0

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.headers = []  # what follows the last chunk is not part of the head

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._is_incomplete = False
        super().on_message_complete()

    def _look(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        is_stuck = 0 < self._unsent <= unsent
        is_silent = self._is_incomplete and not self.flow.read_paused and self._moved < PROGRESS
        if is_stuck:
            self.transport.abort()
        elif is_silent:
            self.transport.close()
        self._unsent = unsent
        self._moved = 0
        self._looking = self.loop.call_later(PATIENCE, self._look)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "bad_request")

    def _refuse(self, status: int, error: str, code: str) -> None:
        """Respond to a malformed request and close the connection."""
        body = msgspec.json.encode({"error": error, "code": code})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Read a request again without its wish for another protocol, which the parser would end it for.

        HTTP/2 is what Java's client wishes for by default, with a body behind it.
        """
        method, error = self.parser.get_method(), sys.exception()
        if method == b"CONNECT" or error is None:
            self.send_400_response("CONNECT is for proxies")
            return
        wishes = (b"upgrade", b"connection", b"http2-settings")
        kept = [b"%s: %s\r\n" % pair for pair in self.headers if pair[0] not in wishes]
        rest = self._data[error.args[0] :]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method, self.url, b"".join(kept), rest))
