"""What published Queen clients show an administrator, and let one do."""

import pytest

from tests.server.conftest import Conversation

SIX = {"total", "pending", "processing", "completed", "failed", "deadLetter"}


def test_resources(queen: Conversation):
    seen = queen("admin")["resources"]
    assert {"queues", "partitions", "namespaces", "tasks", "messages", "lag", "throughput"} <= seen["overview"].keys()
    assert sorted(one["name"] for one in seen["queue"]["partitions"]) == ["Default", "p"]
    assert seen["queue"]["totals"].keys() >= SIX
    assert seen["queue"]["totals"]["total"] == 5
    (listed,) = seen["listed"]
    assert (listed["task"], listed["partitions"], listed["messages"]["total"]) == ("mail", 2, 5)
    (namespace,) = seen["namespaces"]
    assert (namespace["queues"], namespace["partitions"]) == (1, 2)
    assert "mail" in [one["task"] for one in seen["tasks"]]
    assert seen["partitions"]


def test_status(queen: Conversation):
    seen = queen("admin")["status"]
    assert {"timeRange", "throughput", "queues", "messages", "leases", "deadLetterQueue", "workers"} <= seen[
        "status"
    ].keys()
    assert seen["status"]["messages"].keys() >= SIX
    assert seen["queues"]
    assert {"queue", "partitions", "totals"} <= seen["queue"].keys()
    assert seen["queue"]["queue"]["config"]["leaseTime"] == 300
    assert {"dataPoints", "interval", "from", "to"} <= seen["analytics"].keys()
    assert {"timeRange", "replicas", "bucketMinutes"} <= seen["system metrics"].keys()
    assert {"timeSeries", "workers", "queues", "summary"} <= seen["worker metrics"].keys()


def test_groups(queen: Conversation):
    seen = queen("admin")["groups"]
    assert seen["refreshed"] is None
    (listed,) = seen["listed"]
    assert listed["topics"] == [listed["queueName"]]
    (partitions,) = seen["group"].values()
    row = next(one for one in partitions["partitions"] if one["partition"] == "p")
    assert (row["totalConsumed"], row["offsetLag"], row["leaseActive"]) == (1, 0, False)
    assert seen["nobody"] == {}
    assert isinstance(seen["lagging"], list)


def test_messages(queen: Conversation):
    seen = queen("admin")["messages"]
    assert [one["status"] for one in seen["listed"]] == ["pending"] * 4
    assert (seen["shown"]["payload"], seen["shown"]["status"]) == (0, "pending")
    assert seen["shown"]["queueConfig"]["retryLimit"] == 3
    assert seen["deleted"]["success"] is True
    assert seen["dead"] is True
    assert seen["dead after"] == []
    assert seen["left"] == [0, 2, 3], "the deleted one is gone, the dead one is back"


def test_system(queen: Conversation):
    seen = queen("admin")["system"]
    assert (seen["health"]["status"], seen["health"]["database"]) == ("healthy", "connected")
    assert {"uptime", "requests", "messages", "database", "memory", "cpu"} <= seen["metrics"].keys()


@pytest.mark.parametrize("version", ["2.6.0"], indirect=True, scope="module")
def test_depth(queen: Conversation):
    seen = queen("admin")["depth"]
    assert (seen["pending"], seen["partitionsPending"], seen["effectivePending"]) == (4, 1, 4)


@pytest.mark.parametrize("version", ["0.15.0"], indirect=True, scope="module")
def test_what_only_0_15_asks_for(queen: Conversation):
    seen = queen("admin")["only 0.15"]
    assert (seen["maintenance"]["maintenanceMode"], seen["pop maintenance"]["popMaintenanceMode"]) == (False, False)
    assert {"database", "tableSizes", "activeQueries"} <= set(seen["postgres"])
    assert (seen["to dlq"], seen["dead"]) == (None, 1)
    assert (seen["cleared"], seen["after clear"]) == (None, [])


@pytest.mark.parametrize("version", ["0.15.0"], indirect=True, scope="module")
def test_maintenance(queen: Conversation):
    seen = queen("maintenance")
    assert [seen[mode] for mode in ("on", "off", "pop on", "pop off")] == [True, False, True, False]
    assert set(seen["pushed"]) <= {"queued", "buffered"}
    assert (seen["paused"], seen["all"]) == ([], [1, 2, 3])


def test_traces(queen: Conversation):
    seen = queen("traces")
    assert [seen[call]["success"] for call in ("plain", "named", "one name", "without data")] == [
        True,
        True,
        True,
        False,
    ]
    assert [one["data"] for one in seen["of message"]] == [{"text": "started"}, {"step": 2}, "text"]
    assert [one["event_type"] for one in seen["of message"]] == ["info", "step", "info"]
    assert {one["consumer_group"] for one in seen["of message"]} == {"tracers"}
    assert [one["data"] for one in sorted(seen["by name"]["traces"], key=lambda one: one["created_at"])] == [
        {"step": 2},
        "text",
    ]
    assert seen["by name"]["traces"][0]["message_payload"] == {"id": 7}
    assert (seen["page"], sorted(seen["names"].values()), seen["by no name"]) == (1, [1, 2], [])
