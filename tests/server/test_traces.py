"""Traces: written by consumers, read by message and by name."""

from typing import Any

import psycopg
import pytest

from tests.engine.plans import FREEZE, assert_indexed, explained
from tests.engine.verbs import call, pass_time
from tests.server.api import Api

pytest_plugins = ["tests.server.fixtures"]

FIELDS = {"id", "event_type", "data", "consumer_group", "worker_id", "created_at", "trace_names"}
NAMED = FIELDS | {
    "transaction_id", "partition_id", "queue_name", "partition_name", "message_payload", "headers",
}  # fmt: skip


def trace(api: Api, stored: dict[str, Any], data: Any = 1, *, expect: int = 201, **more: Any) -> Any:
    named = {"transactionId": stored["transaction_id"], "partitionId": stored["partition_id"]}
    return api.post("traces", named | {"data": data} | more, expect=expect)


def of(api: Api, stored: dict[str, Any]) -> list[Any]:
    return api.get(f"traces/{stored['partition_id']}/{stored['transaction_id']}")["traces"]


def test_traces_of_a_message(api: Api):
    one, other = api.push("q", 1, 2, ids=["a", "b/c"])
    written = trace(api, one, {"text": "started"})
    assert (written["success"], len(written["traceId"])) == (True, 36)
    trace(api, one, "text", consumerGroup="g", eventType="step", traceNames=["y", "x", "x"])
    trace(api, one, [1], consumerGroup=None, traceNames=None)
    trace(api, other)
    traces = of(api, one)
    assert all(row.keys() == FIELDS for row in traces)
    assert [row["data"] for row in traces] == [{"text": "started"}, "text", [1]]
    assert [row["event_type"] for row in traces] == ["info", "step", "info"]
    assert [row["consumer_group"] for row in traces] == ["__QUEUE_MODE__", "g", "__QUEUE_MODE__"]
    assert [row["trace_names"] for row in traces] == [[], ["x", "y"], []]
    assert (traces[0]["id"], ":" in traces[0]["worker_id"]) == (written["traceId"], True)
    assert len(of(api, other)) == 1


def test_a_message_without_transaction_id(api: Api):
    (stored,) = api.push("q", 1)
    trace(api, stored, "x")
    assert [row["data"] for row in of(api, stored)] == ["x"]


def test_no_such_message(api: Api):
    (stored,) = api.push("q", 1, ids=["a"])
    for wrong in ({"transaction_id": "nobody"}, {"partition_id": "x"}):
        answer = trace(api, stored | wrong, expect=404)
        assert (answer["success"], answer["error"]) == (False, "Message not found")
        assert of(api, stored | wrong) == []


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"partitionId": "p", "data": 1}, "transactionId and partitionId are required"),
        ({"transactionId": "t", "data": 1}, "transactionId and partitionId are required"),
        ({"transactionId": "t", "partitionId": "p"}, "data is required"),
        ({"transactionId": "t", "partitionId": "p", "data": None}, "data is required"),
        (
            {"transactionId": "t", "partitionId": "p", "data": 1, "traceNames": ["n"] * 33},
            "a trace has at most 32 names",
        ),
    ],
)
def test_bodies_that_are_refused(api: Api, body: dict[str, Any], error: str):
    assert api.post("traces", body, expect=400)["error"] == error


def test_what_is_too_large_is_refused(api: Api):
    (stored,) = api.push("q", 1)
    assert "65536" in trace(api, stored, "x" * 70_000, expect=413)["error"]
    assert "300 characters" in trace(api, stored, traceNames="n" * 300, expect=400)["error"]
    assert of(api, stored) == []


def test_by_name(api: Api):
    one, other = api.push("q", {"id": 7}, 2, ids=["a", "b"])
    for number in range(3):
        trace(api, one, number, traceNames="flow/1")
    trace(api, other, 3, traceNames=["flow/1", "x"])
    for name in ("flow/1", "flow%2F1"):
        answer = api.get(f"traces/by-name/{name}")
        assert [row["data"] for row in answer["traces"]] == [3, 2, 1, 0]
        assert (answer["total"], answer["pagination"]) == (4, {"limit": 100, "offset": 0})
    assert all(row.keys() == NAMED for row in answer["traces"])
    row = answer["traces"][-1]
    assert (row["transaction_id"], row["partition_id"]) == ("a", one["partition_id"])
    assert (row["queue_name"], row["partition_name"], row["message_payload"]) == ("q", "Default", {"id": 7})
    pages = [api.get("traces/by-name/flow/1", limit=3, offset=offset) for offset in (0, 3)]
    assert [row["data"] for page in pages for row in page["traces"]] == [3, 2, 1, 0]
    assert pages[1]["total"] == 4
    assert api.get("traces/by-name/nobody") == {"traces": [], "total": 0, "pagination": {"limit": 100, "offset": 0}}


def test_names(api: Api, db: psycopg.Connection):
    one, other = api.push("q", 1, 2, ids=["a", "b"])
    trace(api, one, traceNames=["old"])
    pass_time(db, 60)
    trace(api, one, traceNames=["new"])
    trace(api, one, traceNames=["new"])
    trace(api, other, traceNames=["new"])
    answer = api.get("traces/names")
    assert [row["trace_name"] for row in answer["trace_names"]] == ["new", "old"]
    (new, _) = answer["trace_names"]
    assert new.keys() == {"trace_name", "trace_count", "message_count", "last_seen"}
    assert (new["trace_count"], new["message_count"], new["last_seen"][-1]) == (3, 2, "Z")
    assert (answer["total"], answer["pagination"]) == (2, {"limit": 50, "offset": 0})
    second = api.get("traces/names", limit=1, offset=1)
    assert ([row["trace_name"] for row in second["trace_names"]], second["total"]) == (["old"], 2)


def test_traces_go_with_their_lane(api: Api):
    (one,) = api.push("q", 1, ids=["a"], partition="p")
    (other,) = api.push("q", 1, ids=["a"])
    (third,) = api.push("r", 1, ids=["a"])
    for stored in (one, other, third):
        trace(api, stored, traceNames=["n"])
    api.delete("queues/q/clear", partition="p")
    assert (of(api, one), len(of(api, other))) == ([], 1)
    api.delete("resources/queues/q")
    assert (of(api, other), len(of(api, third)), api.get("traces/by-name/n")["total"]) == ([], 1, 1)
    api.delete("resources/queues/r")
    assert api.get("traces/names")["trace_names"] == []


def test_old_traces_are_pruned(api: Api, db: psycopg.Connection):
    (stored,) = api.push("q", 1)
    trace(api, stored, "old", traceNames=["old", "both"])
    pass_time(db, 8 * 86400)
    trace(api, stored, "new", traceNames=["both"])
    assert call(db, "_prune_traces")[0][0] == 1
    assert [row["data"] for row in of(api, stored)] == ["new"]
    assert [row["trace_name"] for row in api.get("traces/names")["trace_names"]] == ["both"]
    assert db.execute("SELECT name FROM skep.traced_names").fetchall() == [("both",)]


def test_only_so_many_traces_are_kept(api: Api, db: psycopg.Connection):
    (stored,) = api.push("q", 1)
    for number in range(5):
        trace(api, stored, number, traceNames=["n"])
    assert call(db, "_prune_traces", at_most=2)[0][0] == 3
    assert [row["data"] for row in of(api, stored)] == [3, 4]
    assert call(db, "_prune_traces", at_most=2)[0][0] == 0


def test_reads_go_by_their_indexes(api: Api, db: psycopg.Connection):
    db.execute(FREEZE)
    (stored,) = api.push("q", 1, ids=["a"])
    lane = stored["partition_id"]
    db.execute("""
        INSERT INTO skep.traces (partition_id, "offset", transaction_id, group_name, event_type, data)
        SELECT 1, 0, 'b', 'g', 'info', '1' FROM generate_series(1, 5000);
        INSERT INTO skep.trace_names SELECT 'n' || id % 100, id, 1, 0 FROM skep.traces;
        INSERT INTO skep.traced_names SELECT 'n' || n, now() FROM generate_series(0, 99) n;
    """)
    for query, indexes in [
        (f"SELECT skep._queen_traces_of('{lane}', 'a')", {"traces_message"}),
        ("SELECT skep._queen_traces_named('n7', NULL, 10, 0)", {"trace_names_pkey", "traces_pkey"}),
        ("SELECT skep._queen_trace_names(NULL, 10, 0)", {"traced_names_last_seen_at", "trace_names_pkey"}),
        ("SELECT skep._prune_traces()", {"traces_created_at", "traces_pkey", "traced_names_last_seen_at"}),
    ]:
        assert_indexed(explained(db, lambda query=query: db.execute(query.encode())), *indexes)
