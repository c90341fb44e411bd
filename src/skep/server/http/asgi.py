"""Requests and responses in plain ASGI: bodies within limits, JSON out, and every error as a status with a body.

{"error": "what was wrong, and what to do", "code": "a_word_for_programs"}
"""

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeVar

import msgspec

from skep.errors import (
    ConfigError,
    Conflict,
    Forbidden,
    InvalidArgument,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    PushBlocked,
    SkepError,
    StaleLease,
    TransientError,
    Unauthenticated,
    Undecipherable,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
T = TypeVar("T")

TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
JSON: Header = (b"content-type", b"application/json")
RETRY_SOON: Header = (b"retry-after", b"1")
CLOSE: Header = (b"connection", b"close")

# Consumers of Queen's clients survive an error only if its text contains the word "connection".
NO_DATABASE = "the database connection is down or the database is busy; nothing was lost, try again"


class HttpError(Exception):
    """An error response: a status, a text for people and a code for programs."""

    def __init__(self, status: int, error: str, code: str, *, headers: Iterable[Header] = ()) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.code = code
        self.headers = tuple(headers)


class Disconnected(Exception):
    """The client has disconnected."""


def bad_request(error: str) -> HttpError:
    return HttpError(400, error, "bad_request")


_STATUSES: tuple[tuple[type[SkepError], int, str], ...] = (
    (PayloadTooLarge, 413, "payload_too_large"),
    (InvalidArgument, 400, "bad_request"),
    (NotFound, 404, "not_found"),
    (StaleLease, 409, "stale_lease"),
    (Conflict, 409, "conflict"),
    (Unauthenticated, 401, "unauthenticated"),
    (Forbidden, 403, "forbidden"),
    (Undecipherable, 500, "undecipherable"),
    (ConfigError, 500, "misconfigured"),
)


def as_http(error: Exception) -> HttpError:
    """Return the error response. Errors that are not Skep's are only logged."""
    match error:
        case HttpError():
            return error
        case Overloaded():
            return HttpError(503, error.message, "overloaded", headers=[RETRY_SOON])
        case PushBlocked():
            return HttpError(503, told(error), "push_blocked", headers=[RETRY_SOON])
        case TransientError():
            return HttpError(503, NO_DATABASE, "database_unavailable", headers=[RETRY_SOON])
        case SkepError():
            for kind, status, code in _STATUSES:
                if isinstance(error, kind):
                    return HttpError(status, told(error), code)
        case _:
            pass
    return HttpError(500, "internal error; the server's log says more", "internal")


def told(error: SkepError) -> str:
    return f"{error.message}. {error.hint}" if error.hint else error.message


class Budget:
    """A limit on the bytes of bodies in memory. Beyond it requests get a 503."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, size: int) -> None:
        if size > self._left:
            raise Overloaded
        self._left -= size

    def give_back(self, size: int) -> None:
        self._left += size


async def read_body(scope: Scope, receive: Receive, limit: int, budget: Budget) -> bytes:
    """Read the whole body. Refuse it as soon as it is known to be too large."""
    length = content_length(scope)
    if length > limit:
        raise too_large(limit)
    message = await receive()
    chunk: bytes = message.get("body", b"")
    if not message.get("more_body") and message["type"] == "http.request" and len(chunk) <= limit:
        return chunk  # the usual case: one chunk, already in memory
    return await _read_on(message, receive, limit, budget)


async def _read_on(message: MutableMapping[str, Any], receive: Receive, limit: int, budget: Budget) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        while True:
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk: bytes = message.get("body", b"")
            budget.take(len(chunk))
            size += len(chunk)
            chunks.append(chunk)
            if size > limit:
                raise too_large(limit)
            if not message.get("more_body"):
                return b"".join(chunks)
            message = await receive()
    finally:
        budget.give_back(size)


def content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


def header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return value.decode("latin-1")
    return None


def traceparent(scope: Scope) -> str | None:
    """Return the trace that a request belongs to. A malformed header counts as none."""
    given = header(scope, b"traceparent")
    return given if given is not None and TRACEPARENT.fullmatch(given) else None


def too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body is larger than {limit} bytes", "body_too_large")


def decode(decoder: msgspec.json.Decoder[T], body: bytes, explain: Callable[[str], str]) -> T:
    """Read a body. `explain` rewrites the error of a malformed body."""
    if not body:
        raise bad_request("Empty request body")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise bad_request(explain(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"Invalid JSON: {error}") from None


async def answer(send: Send, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
    """Send a response, JSON unless the headers say otherwise. A 204 or 304 has no body and no length."""
    all_headers = list(headers)
    if status not in (204, 304):
        all_headers.append((b"content-length", b"%d" % len(body)))
        if not any(name == b"content-type" for name, _ in all_headers):
            all_headers.append(JSON)
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def answer_error(send: Send, error: HttpError) -> None:
    body = msgspec.json.encode({"error": error.error, "code": error.code})
    await answer(send, error.status, body, error.headers)
