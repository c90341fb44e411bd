"""Spans by OpenTelemetry; imported only where that is installed."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

tracer = trace.get_tracer("skep")


def start(
    name: str, attributes: Mapping[str, str | int], parents: Iterable[str | None]
) -> AbstractContextManager[trace.Span]:
    return tracer.start_as_current_span(
        f"skep {name}",
        kind=trace.SpanKind.CLIENT,
        links=[_link(parent) for parent in dict.fromkeys(parents) if parent is not None],
        attributes={"messaging.system": "skep", "messaging.operation.name": name, **attributes},
    )


def _link(parent: str) -> trace.Link:
    context = TraceContextTextMapPropagator().extract({"traceparent": parent})
    return trace.Link(trace.get_current_span(context).get_span_context())
