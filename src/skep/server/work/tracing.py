"""Traces that go through a queue: the `traceparent` of a push is stored with its messages and delivered with them.

With OpenTelemetry installed, each database call that serves many requests is a span with a link to each of them. The
process chooses the exporter; without a configured SDK a span does nothing.
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
    """Open a span for a database call. `parents` are the traces of the requests it serves."""
    return nullcontext() if spans is None else spans.start(name, attributes, parents)
