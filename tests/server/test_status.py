"""How queues are, now and over time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import pass_time
from tests.server.api import Api

pytest_plugins = ["tests.server.fixtures"]

SIX = {"total", "pending", "processing", "completed", "failed", "deadLetter"}
POINT = {
    "timestamp", "ingested", "processed", "popMessages", "ingestedPerSecond", "processedPerSecond", "popPerSecond",
    "avgLagMs", "maxLagMs", "avgEventLoopLagMs", "maxEventLoopLagMs", "minFreeSlots", "dbErrors", "ackFailed",
    "dlqCount", "queenCpuUserPct", "queenCpuSysPct", "queenRssMb", "dbPoolActive", "dbPoolIdle", "dbPoolSize",
}  # fmt: skip


def sample(db: psycopg.Connection) -> None:
    db.execute("SELECT skep.sample('0')")


def history(api: Api, db: psycopg.Connection) -> None:
    """Ten minutes ago 60 were pushed and 30 consumed; nine minutes ago one died."""
    api.push("ns.q", 0)
    api.take("ns.q", "g")
    sample(db)
    pass_time(db, 60)
    api.push("ns.q", *range(60))
    api.take("ns.q", "g", batch=30)
    sample(db)
    pass_time(db, 60)
    api.ack(api.pop("ns.q", "g", batch=1), "dlq", "broken")
    sample(db)
    pass_time(db, 540)


def test_status(api: Api, db: psycopg.Connection):
    history(api, db)
    api.pop("ns.q", "g", batch=5)
    status = api.get("status")
    assert status.keys() == {
        "timeRange", "bucketMinutes", "pointCount", "throughput", "queues", "messages", "leases", "deadLetterQueue",
        "workers", "errors", "statsAge",
    }  # fmt: skip
    assert status["timeRange"].keys() == {"from", "to"}
    assert (status["bucketMinutes"], status["pointCount"]) == (1, len(status["throughput"]))
    assert all(point.keys() == POINT for point in status["throughput"])
    assert all(len(point["timestamp"]) == 20 for point in status["throughput"])
    busy = next(point for point in status["throughput"] if point["ingested"])
    assert (busy["ingested"], busy["processed"], busy["ingestedPerSecond"]) == (60, 30, 1)
    assert sum(point["dlqCount"] for point in status["throughput"]) == 1
    assert max(point["maxLagMs"] for point in status["throughput"]) >= 60_000
    (queue,) = status["queues"]
    assert queue.keys() == {"id", "name", "namespace", "task", "partitions", "totalConsumed"}
    assert (queue["name"], queue["partitions"], queue["totalConsumed"]) == ("ns.q", 1, 32)
    assert status["messages"].keys() == SIX | {"requests", "batchEfficiency"}
    assert (status["messages"]["processing"], status["messages"]["deadLetter"]) == (5, 1)
    assert (
        status["messages"]["requests"].keys() == status["messages"]["batchEfficiency"].keys() == {"push", "pop", "ack"}
    )
    assert status["leases"] == {"active": 1, "partitionsWithLeases": 1, "totalBatchSize": 5, "totalAcked": 0}
    assert status["deadLetterQueue"] == {
        "totalMessages": 1,
        "affectedPartitions": 1,
        "topErrors": [{"error": "broken", "count": 1}],
    }
    assert (status["workers"], status["errors"]) == ([], {"dbErrors": 0, "ackFailed": 0, "dlqMessages": 1})
    assert 530 <= status["statsAge"] <= 600


def test_filters_of_the_status(api: Api, db: psycopg.Connection):
    history(api, db)
    api.push("other", 1)
    api.ack(api.pop("other"), "dlq", "other")
    queries: list[dict[str, Any]] = [{"queue": "ns.q"}, {"namespace": "ns"}, {"task": "q"}]
    for query in queries:
        status = api.get("status", **query)
        assert [queue["name"] for queue in status["queues"]] == ["ns.q"]
        assert sum(point["ingested"] for point in status["throughput"]) == 60
        assert [error["error"] for error in status["deadLetterQueue"]["topErrors"]] == ["broken"]
    late = (datetime.now(UTC) - timedelta(seconds=570)).isoformat()
    points = api.get("status", queue="ns.q", **{"from": late})["throughput"]  # type: ignore[arg-type]
    assert (sum(point["ingested"] for point in points), sum(point["dlqCount"] for point in points)) == (0, 1)
    status = api.get("status", queue="nobody")
    assert (status["queues"], status["throughput"], status["messages"]["total"]) == ([], [], 0)


@pytest.mark.parametrize(("hours", "minutes"), [(1, 1), (2, 5), (6, 5), (24, 15), (168, 60), (169, 360)])
def test_width_of_buckets(api: Api, hours: int, minutes: int):
    to = datetime.now(UTC)
    query: dict[str, Any] = {"from": (to - timedelta(hours=hours)).isoformat(), "to": to.isoformat()}
    assert api.get("status", **query)["bucketMinutes"] == minutes
    assert api.get("analytics/system-metrics", **query)["bucketMinutes"] == minutes


def test_a_range_that_is_none(api: Api):
    query: dict[str, Any] = {"from": "2026-02-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"}
    assert api.get("status", expect=400, **query)["error"] == "from is later than to"
    assert api.get("status", to="x", expect=400)["error"].startswith("to is not a time")


def test_queues(api: Api):
    for queue in ("a.x", "a.y", "b.x"):
        api.push(queue, 1)
    answer = api.get("status/queues")
    assert [queue["name"] for queue in answer["queues"]] == ["b.x", "a.y", "a.x"]
    assert answer["queues"][0].keys() == {"id", "name", "namespace", "task", "createdAt", "partitions", "messages"}
    assert answer["queues"][0]["messages"].keys() == {"total", "pending", "processing"}
    assert answer["pagination"] == {"limit": 100, "offset": 0}
    assert [queue["name"] for queue in api.get("status/queues", namespace="a", task="x")["queues"]] == ["a.x"]
    page = api.get("status/queues", limit=1, offset=1)
    assert ([queue["name"] for queue in page["queues"]], page["pagination"]) == (["a.y"], {"limit": 1, "offset": 1})


def test_one_queue(api: Api):
    api.post("configure", {"queue": "q", "options": {"leaseTime": 60, "priority": 3, "ttl": 7}}, expect=201)
    api.push("q", 1, 2)
    api.push("q", 3, partition="p")
    api.take("q", "g", batch=100)
    shown = api.get("status/queues/q")
    assert shown.keys() == {"queue", "partitions", "totals"}
    assert shown["queue"].keys() == {"id", "name", "namespace", "task", "priority", "createdAt", "config"}
    assert shown["queue"]["priority"] == 3
    assert shown["queue"]["config"] == {
        "leaseTime": 60,
        "retryLimit": 3,
        "retryDelay": 1000,
        "ttl": 7,
        "maxQueueSize": 0,
        "deadLetterQueue": False,
    }
    assert [lane["name"] for lane in shown["partitions"]] == ["Default", "p"]
    lane = shown["partitions"][0]
    assert lane.keys() == {
        "id", "name", "createdAt", "messages", "stats", "cursor", "lastActivity", "oldestMessage", "newestMessage",
    }  # fmt: skip
    assert (lane["messages"].keys(), lane["stats"]) == (SIX, lane["messages"])
    assert lane["cursor"] == {"totalConsumed": 2, "batchesConsumed": 0}
    assert shown["totals"].keys() == SIX | {"messages"}
    assert (shown["totals"]["completed"], shown["totals"]["messages"]["total"]) == (3, 3)
    assert api.get("status/queues/nobody", expect=404)["error"] == "Queue not found"


def test_messages_of_a_queue(api: Api, db: psycopg.Connection):
    """Of any age, and limit and offset count."""
    api.push("q", 1, ids=["old"])
    pass_time(db, 30 * 86400)
    api.push("q", 2, 3, ids=["a", "b"])
    rows = api.get("status/queues/q/messages")
    assert [row["transactionId"] for row in rows] == ["b", "a", "old"]
    assert rows[0].keys() == {
        "id", "transactionId", "partitionId", "queuePath", "queue", "partition", "status", "createdAt",
    }  # fmt: skip
    assert [row["transactionId"] for row in api.get("status/queues/q/messages", limit=1, offset=1)] == ["a"]
    assert api.get("status/queues/nobody/messages") == []


def test_analytics(api: Api, db: psycopg.Connection):
    history(api, db)
    for interval in ("minute", "hour", "day"):
        answer = api.get("status/analytics", interval=interval)
        assert answer.keys() == {"dataPoints", "interval", "from", "to"}
        assert answer["interval"] == interval
        assert sum(point["messages"] for point in answer["dataPoints"]) == 60
        assert all(point.keys() == {"timestamp", "messages"} for point in answer["dataPoints"])
    assert api.get("status/analytics")["interval"] == "hour"
    assert api.get("status/analytics", queue="nobody")["dataPoints"] == []
    assert api.get("status/analytics", interval="year", expect=400)["error"] == "interval is one of minute, hour, day"


def test_buffers(api: Api):
    answer = api.get("status/buffers")
    assert answer.keys() == {"pending", "failed", "dbHealthy", "worker", "note"}
    assert (answer["pending"], answer["failed"], answer["dbHealthy"]) == (0, 0, True)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z"])
@pytest.mark.parametrize("name", ["from", "to"])
@pytest.mark.parametrize("path", ["messages", "status", "analytics/system-metrics", "dlq"])
def test_times_that_nobody_can_mean(api: Api, path: str, name: str, time: str):
    query: dict[str, Any] = {name: time}
    assert "is not a time from 1970 to 9000" in api.get(path, expect=400, **query)["error"]
