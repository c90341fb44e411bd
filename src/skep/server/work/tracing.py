"""Traces that go through a queue: the `traceparent` of a push is kept with its messages and handed out with them.

With OpenTelemetry installed, each database call that serves many requests is a span with a link to each of them. Which
exporter gets it is up to the process: without a configured SDK a span is nothing.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from skep.server.http.asgi import Scope, header

try:
    from skep.server import spans
except ImportError:
    spans = None

HEADER = "traceparent"
VALID = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent(scope: Scope) -> str | None:
    """Return what a request says of the trace it belongs to; what is malformed is no trace."""
    given = header(scope, b"traceparent")
    return given if given is not None and VALID.fullmatch(given) else None


def span(
    name: str, attributes: Mapping[str, str | int], parents: Iterable[str | None] = ()
) -> AbstractContextManager[Any]:
    """Span a database call; `parents` are the traces of the requests it serves."""
    return nullcontext() if spans is None else spans.start(name, attributes, parents)
