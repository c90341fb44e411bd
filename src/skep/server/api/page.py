"""The dashboard: its page at `/`, and the files that make it. Everything it shows comes from the JSON API."""

import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from skep.server.http.asgi import Header, header
from skep.server.http.endpoint import Call, Endpoint, Reply
from skep.server.http.lists import not_found

# Found by its path: the server and the dashboard do not import one another.
STATIC = Path(str(files("skep"))) / "dashboard" / "static"
NAME = re.compile(r"(vendor/)?[a-z][a-z0-9_]*\.(js|css|svg|html)")
MEDIA = {
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".html": b"text/html; charset=utf-8",
}
ALONE = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
GUARDS: tuple[Header, ...] = (
    (b"content-security-policy", ALONE),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),  # the browser asks each time, and gets a 304 until the version changes
)


async def page(call: Call) -> Reply:
    """Send the page. Without the libraries, send one that says how to get them."""
    return _send(call, "index.html" if (STATIC / "vendor" / "preact.js").is_file() else "missing.html")


async def asset(call: Call) -> Reply:
    name = call.params["file"]
    if not NAME.fullmatch(name) or not (STATIC / name).is_file():
        raise not_found("File")
    return _send(call, name)


def _send(call: Call, name: str) -> Reply:
    path = STATIC / name
    body, tag = _read(path, path.stat().st_mtime_ns)
    headers = ((b"content-type", MEDIA[path.suffix]), (b"etag", tag.encode()), *GUARDS)
    known = {each.strip().removeprefix("W/") for each in (header(call.scope, b"if-none-match") or "").split(",")}
    return Reply(304, b"", headers) if tag in known else Reply(200, body, headers)


@lru_cache(maxsize=64)
def _read(path: Path, _version: int) -> tuple[bytes, str]:
    body = path.read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:20]}"'


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/",
        action=None,
        run=page,
        summary="The dashboard.",
        answers={200: str},
        media="text/html",
    ),
    Endpoint(
        method="GET",
        path="/dashboard/{file...}",
        action=None,
        run=asset,
        summary="A file of the dashboard.",
        answers={200: str},
        media="*/*",
    ),
)
