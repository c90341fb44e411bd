"""The series of a dashboard: the right shape always, and numbers where samples have them."""

import threading
import time

import psycopg

from tests.engine.verbs import call, configure
from tests.server.api import Api
from tests.server.test_status import history

pytest_plugins = ["tests.server.fixtures"]

WORKERS = {
    "timestamp", "pushMessages", "popMessages", "ackMessages", "pushRequests", "popRequests", "ackRequests",
    "jobsDone", "pushPerSecond", "popPerSecond", "ackPerSecond", "avgEventLoopLagMs", "maxEventLoopLagMs",
    "avgFreeSlots", "minFreeSlots", "dbConnections", "avgJobQueueSize", "maxJobQueueSize", "backoffSize", "avgLagMs",
    "maxLagMs", "lagCount", "dbErrors", "ackSuccess", "ackFailed", "dlqCount",
}  # fmt: skip
SUMMARY = {
    "totalPushMessages", "totalPopMessages", "totalAckMessages", "totalPushRequests", "totalPopRequests",
    "totalAckRequests", "totalDbErrors", "totalAckFailed", "totalDlq", "pendingMessages",
}  # fmt: skip
OPS = {
    "bucket", "queueName", "pushRequests", "pushMessages", "popMessages", "popEmpty", "ackRequests", "ackSuccess",
    "ackFailed", "transactions", "partitionsCreated", "partitionsDeleted", "partitionCount", "avgLagMs", "maxLagMs",
    "pushPerSecond", "popPerSecond", "ackPerSecond", "emptyPerSecond", "parkedCount",
}  # fmt: skip
RETAINED = {"retentionMsgs", "completedRetentionMsgs", "evictionMsgs", "totalMsgs", "eventCount"}


def test_system_metrics(api: Api):
    answer = api.get("analytics/system-metrics", hostname="h", workerId="w")
    assert answer.keys() == {"timeRange", "replicas", "replicaCount", "bucketMinutes", "pointCount"}
    assert (answer["replicas"], answer["timeRange"].keys()) == ([], {"from", "to"})


def test_worker_metrics(api: Api, db: psycopg.Connection):
    assert api.get("analytics/worker-metrics")["timeSeries"] == []
    history(api, db)
    answer = api.get("analytics/worker-metrics")
    assert answer.keys() == {"timeRange", "bucketMinutes", "pointCount", "timeSeries", "workers", "queues", "summary"}
    assert all(point.keys() == WORKERS for point in answer["timeSeries"])
    assert answer["pointCount"] == len(answer["timeSeries"])
    assert sum(point["pushMessages"] for point in answer["timeSeries"]) == 60
    (queue,) = answer["queues"]
    assert queue.keys() == {"queueName", "popCount", "avgLagMs", "maxLagMs"}
    assert (queue["queueName"], queue["popCount"]) == ("ns.q", 31)
    assert answer["summary"].keys() == SUMMARY
    assert (answer["summary"]["totalPushMessages"], answer["summary"]["totalDlq"]) == (60, 1)
    assert answer["summary"]["pendingMessages"] == 29


def test_queue_lag(api: Api, db: psycopg.Connection):
    assert api.get("analytics/queue-lag") == []
    history(api, db)
    rows = api.get("analytics/queue-lag", queue="ns.q")
    assert all(row.keys() == {"queueName", "popCount", "avgLagMs", "maxLagMs", "bucketTime"} for row in rows)
    assert (sum(row["popCount"] for row in rows), max(row["maxLagMs"] for row in rows) >= 60_000) == (31, True)
    assert api.get("analytics/queue-lag", queue="nobody") == []


def test_queue_ops(api: Api, db: psycopg.Connection):
    assert api.get("analytics/queue-ops")["series"] == []
    history(api, db)
    answer = api.get("analytics/queue-ops")
    assert answer.keys() == {"timeRange", "bucketMinutes", "series", "queues"}
    assert all(row.keys() == OPS for row in answer["series"])
    assert (answer["queues"], sum(row["pushMessages"] for row in answer["series"])) == (["ns.q"], 60)
    assert {row["partitionCount"] for row in answer["series"]} == {1}


def test_who_is_parked(api: Api):
    answer = api.get("analytics/queue-parked-replicas")
    assert answer.keys() == {"timeRange", "bucketMinutes", "series", "replicas"}
    assert (answer["series"], answer["replicas"][0].keys()) == ([], {"hostname", "workerId"})
    waiter = threading.Thread(target=lambda: api.pop("q", wait="true", timeout=20_000))
    waiter.start()
    deadline = time.monotonic() + 10
    while not (series := api.get("analytics/queue-parked-replicas")["series"]):
        assert time.monotonic() < deadline
    api.push("q", 1)
    waiter.join()
    assert series[0].keys() == {"bucket", "queueName", "hostname", "workerId", "parkedCount"}
    assert (series[0]["queueName"], series[0]["parkedCount"]) == ("q", 1)


def test_retention(api: Api, db: psycopg.Connection):
    configure(db, "q", max_size=4)
    api.push("q", *range(10))
    db.execute("SELECT skep.sample('0')")
    call(db, "retain")
    db.execute("SELECT skep.sample('0')")
    answer = api.get("analytics/retention")
    assert answer.keys() == {"timeRange", "bucketMinutes", "series", "totals"}
    assert all(row.keys() == RETAINED | {"bucket"} for row in answer["series"])
    assert (answer["totals"].keys(), answer["totals"]["totalMsgs"]) == (RETAINED, 6)


def test_postgres(api: Api):
    answer = api.get("analytics/postgres-stats")
    assert answer.keys() == {
        "timestamp", "database", "databaseCache", "tableCache", "indexCache", "cacheSummary", "deadTuples",
        "hotUpdates", "activeQueries", "autovacuumStatus", "bufferConfig", "bufferUsage", "tableSizes",
    }  # fmt: skip
    assert "messages" in [row["table"] for row in answer["tableSizes"]]
    assert answer["bufferConfig"].keys() == {"shared_buffers", "effective_cache_size"}
