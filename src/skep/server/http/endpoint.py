"""A route: its path, the right it needs, its body and responses. The OpenAPI document is made from the same table."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from skep.server.http.asgi import Disconnected, Header, Receive, Scope, bad_request, read_body
from skep.server.http.grants import Action, Identity
from skep.server.http.state import State

T = TypeVar("T")
LAST = 2**31 - 1
REMEMBERED_QUERY = 512  # bytes of the longest query string that is remembered


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: JSON unless the headers say otherwise."""

    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()


def reply(value: object, status: int = 200) -> Reply:
    return Reply(status, msgspec.json.encode(value))


def _parse_query(query: bytes) -> dict[str, str]:
    """Read a query string. If a name is repeated, the first counts, as in Queen."""
    try:
        pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise bad_request("the query string is malformed") from None
    if any("\0" in name + value for name, value in pairs):
        raise bad_request("the query string has a NUL character")
    return dict(reversed(pairs))


_parse_known_query = lru_cache(maxsize=4096)(_parse_query)  # clients repeat themselves


class Call:
    """One request, as an endpoint sees it."""

    __slots__ = ("_receive", "identity", "params", "scope", "state")

    def __init__(
        self, state: State, scope: Scope, receive: Receive, params: Mapping[str, str], identity: Identity
    ) -> None:
        self.state = state
        self.scope = scope
        self.params = params
        self.identity = identity
        self._receive = receive

    @property
    def query(self) -> dict[str, str]:
        query = self.scope["query_string"]
        return _parse_known_query(query) if len(query) <= REMEMBERED_QUERY else _parse_query(query)

    @property
    def gone(self) -> bool:
        """Return true if the client has disconnected."""
        return self.scope["extensions"]["skep"]["is_gone"]()

    def text(self, name: str) -> str | None:
        """Return a parameter. An empty one counts as absent."""
        return self.query.get(name) or None

    def integer(self, name: str, default: int, *, least: int = 0, most: int = LAST) -> int:
        given = self.query.get(name)
        if not given:
            return default
        try:
            return min(max(int(given), least), most)
        except ValueError:
            return default  # as Queen does

    def flag(self, name: str, *, default: bool = False) -> bool:
        given = self.query.get(name)
        return default if given is None else given in ("true", "1")

    def instant(self, name: str) -> datetime | None:
        given = self.text(name)
        return None if given is None else instant(given, name)

    async def body(self) -> bytes:
        return await read_body(self.scope, self._receive, self.state.config.max_body_bytes, self.state.budget)

    async def json(self, kind: type[T], *, default: T | None = None) -> T:
        """Read the body as this type. An empty body is `default`, or an error without one."""
        raw = await self.body()
        if not raw:
            if default is None:
                raise bad_request("Empty request body")
            return default
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError as error:
            raise bad_request(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request(f"Invalid JSON: {error}") from None

    async def disconnected(self) -> None:
        """Return when the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def until_gone(self, work: Awaitable[T]) -> T:
        """Return the result of some work; end it with `Disconnected` if the client disconnects first."""
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(self.disconnected())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Disconnected
            return task.result()
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()


def instant(text: str, name: str) -> datetime:
    """Read an ISO time. Without a zone it is UTC."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise bad_request(f"{name} is not a time; expected something like 2026-01-31T12:00:00Z") from None


@dataclass(frozen=True, slots=True)
class Param:
    """A query parameter, for the document."""

    name: str
    kind: Literal["string", "integer", "boolean"] = "string"
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route. `{name}` is a segment of the path, `{name...}` the rest of it.

    `action` is the right that the caller needs: on the queue in the path, or on every queue if the path has none. An
    endpoint with `on="each"` checks the right itself, queue by queue. Without an action the endpoint is public.
    """

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    action: Action | None
    run: Callable[[Call], Awaitable[Reply]]
    summary: str
    on: Literal["queue", "every", "each"] | None = None
    query: Sequence[Param] = ()
    body: Any = None  # a type
    body_required: bool = True
    answers: Mapping[int, Any] = field(default_factory=lambda: {200: dict[str, Any]})  # types; a tuple: one of them
    media: str = "application/json"  # of the responses
    shared: bool = False  # a caller that accepts an old response may get one that was made for another

    def check(self, identity: Identity, params: Mapping[str, str]) -> None:
        if self.action is None:
            return
        if self.on == "each":
            identity.require_somewhere(self.action)
        else:
            identity.require(self.action, params.get("queue") if self.on != "every" else None)


class _Node:
    __slots__ = ("children", "endpoints", "param", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.param: _Node | None = None
        self.endpoints: dict[str, Endpoint] = {}
        self.rest: dict[str, Endpoint] = {}


class Router:
    """Finds the endpoint of a path. It splits before it decodes: an encoded slash is part of a name."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._root = _Node()
        for endpoint in endpoints:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        node = self._root
        for segment in endpoint.path.split("/")[1:]:
            if segment.endswith("...}"):
                node.rest[endpoint.method] = endpoint
                return
            if segment.startswith("{"):
                node.param = node = node.param or _Node()
            else:
                node = node.children.setdefault(segment, _Node())
        if endpoint.method in node.endpoints:
            raise ValueError(f"{endpoint.method} {endpoint.path} is there twice")
        node.endpoints[endpoint.method] = endpoint

    def find(self, raw_path: str) -> tuple[dict[str, Endpoint], list[str]]:
        """Return the endpoints of a path by method, and the values of its parameters in their order."""
        segments = raw_path.split("/")[1:]
        return _find(self._root, segments, 0) or ({}, [])


def _find(node: _Node, segments: list[str], at: int) -> tuple[dict[str, Endpoint], list[str]] | None:
    if at == len(segments):
        return (node.endpoints, []) if node.endpoints else None
    segment = segments[at]
    child = node.children.get(segment)
    if child is not None and (found := _find(child, segments, at + 1)):
        return found
    if node.param is not None and segment and (found := _find(node.param, segments, at + 1)):
        return found[0], [segment, *found[1]]
    return (node.rest, ["/".join(segments[at:])]) if node.rest else None


@lru_cache(maxsize=1024)
def param_names(path: str) -> tuple[str, ...]:
    return tuple(part[1:].rstrip("}").removesuffix("...") for part in path.split("/") if part.startswith("{"))


def decoded(names: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Percent-decode the parameters of a path, once."""
    try:
        params = {name: unquote(value, errors="strict") for name, value in zip(names, values, strict=True)}
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None
    if any("\0" in value for value in params.values()):
        raise bad_request("the path has a NUL character")
    return params
