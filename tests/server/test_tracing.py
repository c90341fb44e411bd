"""Traces: what belongs together on both sides of a queue, and a span for each call to the database."""

from collections.abc import Callable, Generator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from skep.server.work import spans as otel
from skep.server.work import tracing
from tests.server.serving import Client, client, in_thread, until

__all__ = ["client", "in_thread"]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def queue() -> str:
    return f"q-{uuid4().hex[:8]}"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[str], list[ReadableSpan]]]:
    """Return the finished spans of a name."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(otel, "tracer", provider.get_tracer("test"))
    yield lambda name: [span for span in exporter.get_finished_spans() if span.name == name]
    provider.shutdown()


def push(client: Client, queue: str, parent: str | None, **fields: Any) -> None:
    headers = {} if parent is None else {"traceparent": parent}
    items = [{"queue": queue, "payload": 1, **fields}]
    assert client.post("/api/v1/push", {"items": items}, headers=headers).status == 201


def headers_of(client: Client, queue: str) -> Any:
    return client.pop(queue)[0]["headers"]


def test_the_trace_of_a_push_comes_out_with_the_message(client: Client, queue: str):
    push(client, queue, PARENT)
    assert headers_of(client, queue) == {"traceparent": PARENT}


def test_a_message_that_names_its_trace_keeps_it(client: Client, queue: str):
    own = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-00", "color": "blue"}
    push(client, queue, PARENT, headers=own)
    assert headers_of(client, queue) == own


@pytest.mark.parametrize(
    "parent",
    [None, "nonsense", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"{PARENT}-x", PARENT.upper()],
)
def test_what_is_malformed_is_no_trace(client: Client, queue: str, parent: str | None):
    push(client, queue, parent)
    assert headers_of(client, queue) is None


def test_transactions_and_streams_keep_it_as_well(client: Client, queue: str):
    headers = {"traceparent": PARENT}
    bundle = {"operations": [{"type": "push", "items": [{"queue": queue, "payload": 1}]}]}
    assert client.post("/api/v1/transaction", bundle, headers=headers).json["success"]
    (message,) = client.pop(queue)
    assert message["headers"] == headers
    stream = {"name": queue, "source_queue": queue, "config_hash": "h"}
    query = client.post("/streams/v1/queries", stream).json["query_id"]
    sink = f"{queue}-sink"
    step = {"query_id": query, "partition_id": message["partitionId"], "push_items": [{"queue": sink}]}
    assert client.post("/streams/v1/cycle", step, headers=headers).json["success"]
    assert headers_of(client, sink) == headers


def test_a_call_is_a_span_with_links_to_its_requests(
    client: Client, queue: str, spans: Callable[[str], list[ReadableSpan]]
):
    push(client, queue, PARENT)
    (pushed,) = spans("skep push")
    (link,) = pushed.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert dict(pushed.attributes or {}) == {
        "messaging.system": "skep",
        "messaging.operation.name": "push",
        "skep.requests": 1,
    }
    (message,) = client.pop(queue, consumerGroup="g")
    (popped,) = spans("skep pop")
    assert (popped.attributes or {})["messaging.destination.name"] == queue
    assert (popped.attributes or {})["messaging.consumer.group.name"] == "g"
    ack = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "consumerGroup": "g"}
    client.post("/api/v1/ack", ack)
    assert len(spans("skep ack")) == 1


def test_many_requests_are_one_span(
    client: Client,
    queue: str,
    spans: Callable[[str], list[ReadableSpan]],
    in_thread: Callable[..., Any],
    module_database_url: str,
):
    """While somebody holds the partition, requests gather."""
    push(client, queue, None)
    with psycopg.connect(module_database_url) as holder:
        holder.execute("SELECT FROM skep.partitions FOR UPDATE")
        pushing = [in_thread(push, client, queue, f"00-{TRACE}-{number:016x}-01") for number in range(1, 16)]
        until(lambda: len(client.app.state.push._waiting) >= 10)
    for each in pushing:
        each.result()
    links = [len(span.links) for span in spans("skep push")]
    assert (sum(links), max(links) >= 10) == (15, True)


def test_an_error_is_in_the_span(client: Client, queue: str, spans: Callable[[str], list[ReadableSpan]]):
    assert client.post("/api/v1/push", {"items": [{"queue": "x" * 300}]}).status == 400
    (failed,) = spans("skep push")
    assert not failed.status.is_ok


def test_without_opentelemetry_there_is_nothing_to_do(client: Client, queue: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing, "spans", None)
    push(client, queue, PARENT)
    assert headers_of(client, queue) == {"traceparent": PARENT}
