"""Traces that go through a queue: the `traceparent` of a push is kept with its messages and handed out with them.

With OpenTelemetry installed, each database call that serves many requests is a span with a link to each of them. Which
exporter gets it is up to the process: without a configured SDK a span is nothing.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

try:
    from skep.server.work import spans
except ImportError:
    spans = None

HEADER = "traceparent"


def span(
    name: str, attributes: Mapping[str, str | int], parents: Iterable[str | None] = ()
) -> AbstractContextManager[Any]:
    """Span a database call; `parents` are the traces of the requests it serves."""
    return nullcontext() if spans is None else spans.start(name, attributes, parents)
