"""The description of all routes: for programs, and as a page for people."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from skep.server.http.endpoint import Call, Endpoint, Reply
from skep.server.http.openapi import document

PAGE = Path(__file__).parent / "docs.html"
HTML = (b"content-type", b"text/html; charset=utf-8")
ALONE = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
)


def described(endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Return these endpoints and the two that describe them all."""

    @cache
    def text() -> bytes:
        return msgspec.json.encode(document(complete))

    async def openapi(_: Call) -> Reply:
        return Reply(200, text())

    complete = (
        *endpoints,
        Endpoint(
            method="GET",
            path="/openapi.json",
            action=None,
            run=openapi,
            summary="This description, for programs.",
            answers={200: dict[str, Any]},
        ),
        Endpoint(
            method="GET",
            path="/docs",
            action=None,
            run=docs,
            summary="This description, for people.",
            answers={200: str},
            media="text/html",
        ),
    )
    return complete


async def docs(_: Call) -> Reply:
    return Reply(200, _page(), (HTML, (b"content-security-policy", ALONE)))


@cache
def _page() -> bytes:
    return PAGE.read_bytes()
