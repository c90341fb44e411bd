"""The ASGI application: find the endpoint, authenticate the caller, respond. Every error is a response as well."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from skep.config import Config
from skep.errors import SkepError
from skep.server.http.asgi import (
    CLOSE,
    Disconnected,
    Header,
    HttpError,
    Receive,
    Scope,
    Send,
    answer,
    answer_error,
    as_http,
    header,
)
from skep.server.http.cache import ResponseCache, max_age
from skep.server.http.endpoint import Call, Endpoint, Reply, Router, decoded, param_names
from skep.server.http.grants import Identity
from skep.server.http.state import State

log = logging.getLogger("skep.server")

ANONYMOUS = Identity()
METHODS = b"GET, POST, PUT, PATCH, DELETE, OPTIONS"
NO_CONTENT = 204
CLIENT_ERROR = 400
SERVER_ERROR = 500
CLIENT_GONE = 499  # the code that nginx uses, for metrics
UNKNOWN = ""  # counts for all unknown paths and methods, so that they do not fill the memory


class App:
    """One server process."""

    def __init__(self, config: Config, endpoints: Sequence[Endpoint], shared: Path | None = None) -> None:
        """Serve `endpoints`. `shared` is the folder in which several processes of one server share their counts."""
        self.config = config
        self._shared = shared
        self._router = Router(endpoints)
        self._state: State | None = None
        self._cache = ResponseCache[Reply]()
        self._any_origin = "*" in config.cors_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, self._with_headers(scope, send))
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def stop(self) -> None:
        """End waiting polls: this server delivers no more messages."""
        if self._state is not None:
            await self._state.stop()

    @property
    def state(self) -> State:
        assert self._state is not None, "not started"  # noqa: S101
        return self._state

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with State(self.config, self._shared) as self._state:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":
            await answer(send, NO_CONTENT, b"")
            return
        start = perf_counter()
        path, status = UNKNOWN, CLIENT_GONE
        try:
            endpoint, params = self._find(scope)
            path = endpoint.path
            call = await self._admit(endpoint, params, scope, receive)
            result = await (self._share(endpoint, call) if endpoint.shared else endpoint.run(call))
            status = result.status
            await answer(send, status, result.body, result.headers)
        except Disconnected:
            pass
        except Exception as error:
            told = as_http(error)
            status = told.status
            if status >= SERVER_ERROR and not isinstance(error, (SkepError, HttpError)):
                log.exception("%s %s failed", scope["method"], scope["path"])
            await answer_error(send, told)
        finally:
            self.state.meter.request(scope["method"] if path else "", path, status, perf_counter() - start)

    def _find(self, scope: Scope) -> tuple[Endpoint, Mapping[str, str]]:
        methods, values = self._router.find(scope["raw_path"].decode("latin-1"))
        endpoint = methods.get(scope["method"])
        if endpoint is None:
            if methods:
                allow = (b"allow", ", ".join([*methods, "OPTIONS"]).encode())
                raise HttpError(405, "Method Not Allowed", "method_not_allowed", headers=[allow])
            raise HttpError(404, "Not Found", "no_such_route")
        return endpoint, decoded(param_names(endpoint.path), values) if values else {}

    async def _admit(self, endpoint: Endpoint, params: Mapping[str, str], scope: Scope, receive: Receive) -> Call:
        if endpoint.action is None:
            return Call(self.state, scope, receive, params, ANONYMOUS)
        identity = await self.state.authenticator.identify(header(scope, b"authorization"))
        endpoint.check(identity, params)
        return Call(self.state, scope, receive, params, identity)

    async def _share(self, endpoint: Endpoint, call: Call) -> Reply:
        """Return a recent response to a caller with the same rights, if the caller accepts that."""
        oldest = max_age(header(call.scope, b"cache-control"))
        if not oldest:
            return await endpoint.run(call)
        who = (call.identity.roles, call.identity.grants)
        question = (call.scope["raw_path"], call.scope["query_string"], who)
        return await self._cache.share(question, oldest, lambda: endpoint.run(call))

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        """Add the headers of CORS. After an error, close a connection whose client waits to send its body."""
        cors = self._cors(scope)

        async def start(message: Any) -> None:  # noqa: ANN401
            if message["type"] == "http.response.start":
                message["headers"] += cors
                if message["status"] >= CLIENT_ERROR and header(scope, b"expect") is not None:
                    message["headers"].append(CLOSE)
            await send(message)

        return start

    def _cors(self, scope: Scope) -> list[Header]:
        if self._any_origin:
            return _ANY_ORIGIN
        origin = header(scope, b"origin")
        if origin is None or origin not in self.config.cors_origins:
            return []
        return [(b"access-control-allow-origin", origin.encode()), (b"vary", b"Origin"), *_CORS]


_CORS: list[Header] = [
    (b"access-control-allow-methods", METHODS),
    (b"access-control-allow-headers", b"Content-Type, Authorization"),
    (b"access-control-max-age", b"86400"),
]
_ANY_ORIGIN: list[Header] = [(b"access-control-allow-origin", b"*"), *_CORS]
