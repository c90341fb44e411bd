"""Consumer groups over HTTP."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.engine.verbs import broken, pass_time
from tests.server.api import Api

pytest_plugins = ["tests.server.fixtures"]

LISTED = {
    "name", "topics", "queueName", "members", "partitionsWithLag", "totalLag", "maxTimeLag", "state",
    "subscriptionMode", "subscriptionTimestamp", "subscriptionCreatedAt", "status",
}  # fmt: skip
LAGGING = {
    "consumer_group", "queue_name", "partition_name", "partition_id", "worker_id", "offset_lag", "time_lag_seconds",
    "lag_hours", "oldest_unconsumed_at", "last_consumed_at",
}  # fmt: skip
SHOWN = {
    "partition", "workerId", "lastConsumedAt", "totalConsumed", "offsetLag", "timeLagSeconds", "leaseActive",
}  # fmt: skip


def by_name(api: Api) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["name"], row["queueName"]): row for row in api.get("consumer-groups")}


def test_list(api: Api, db: psycopg.Connection):
    api.push("q", 1, 2)
    api.push("q", 3, partition="p")
    api.push("r", 1)
    api.take("q", "g")
    api.take("q")
    api.take("r", "g", subscriptionMode="new")
    groups = by_name(api)
    assert groups.keys() == {("g", "q"), ("g", "r"), ("__QUEUE_MODE__", "q")}
    assert all(row.keys() == LISTED for row in groups.values())
    row = groups["g", "q"]
    assert (row["topics"], row["members"], row["partitionsWithLag"], row["totalLag"]) == (["q"], 2, 0, None)
    assert (row["maxTimeLag"], row["state"], row["subscriptionMode"]) == (0, "Stable", "all")
    assert groups["g", "r"]["subscriptionMode"] == "new"
    assert groups["g", "r"]["subscriptionTimestamp"] < groups["g", "r"]["subscriptionCreatedAt"]
    api.push("q", 4)
    pass_time(db, 400)
    assert [by_name(api)["g", "q"][name] for name in ("state", "maxTimeLag", "partitionsWithLag")] == [
        "Lagging",
        400,
        1,
    ]


def test_a_group_that_met_no_partition_is_dead(api: Api):
    api.pop("nobody", "g")
    (row,) = api.get("consumer-groups")
    assert (row["queueName"], row["members"], row["state"]) == ("nobody", 0, "Dead")


def test_lagging(api: Api, db: psycopg.Connection):
    api.push("q", 1, 2, 3)
    api.take("q", "g", batch=1)
    pass_time(db, 7200)
    api.push("q", 1, partition="fresh")
    api.pop("q", "g", batch=1)
    (row,) = api.get("consumer-groups/lagging")
    assert row.keys() == LAGGING
    assert (row["consumer_group"], row["queue_name"], row["partition_name"]) == ("g", "q", "Default")
    assert (row["offset_lag"], row["time_lag_seconds"], row["lag_hours"]) == (2, 7200, 2.0)
    assert row["oldest_unconsumed_at"] <= row["last_consumed_at"]
    assert api.get("consumer-groups/lagging", minLagSeconds=10_000) == []
    assert len(api.get("consumer-groups/lagging", minLagSeconds=0)) == 2


def test_one_group(api: Api, db: psycopg.Connection):
    api.push("q", 1, 2, 3)
    api.push("q", 1, partition="p")
    api.push("r", 1)
    api.take("q", "g", batch=1)
    (held,) = api.pop("q", "g", batch=1)
    api.take("r", "g")
    shown = api.get("consumer-groups/g")
    assert shown.keys() == {"q", "r"}
    lanes = {row["partition"]: row for row in shown["q"]["partitions"]}
    assert all(row.keys() == SHOWN for row in lanes.values())
    assert sum(row["totalConsumed"] for row in lanes.values()) == 1
    assert sum(row["offsetLag"] for row in lanes.values()) == 3
    assert [row["workerId"] for row in lanes.values() if row["leaseActive"]] == [held["leaseId"]]
    assert api.get("consumer-groups/nobody") == {}


def test_delete_everywhere(api: Api, db: psycopg.Connection):
    """Afterwards the name is brand new; to do it again changes nothing."""
    for queue in ("q", "r"):
        api.push(queue, 1)
        api.take(queue, "g", subscriptionMode="all")
    answer = api.delete("consumer-groups/g")
    assert answer == {"success": True, "consumerGroup": "g", "deletedPartitions": 2, "metadataDeleted": True}
    assert api.get("consumer-groups/g") == {}
    pass_time(db, 60)  # a new group gets what was pushed seconds ago
    assert (api.take("q", "g", subscriptionMode="new"), api.take("r", "g")) == ([], [1])
    api.delete("consumer-groups/g")
    assert api.delete("consumer-groups/g")["deletedPartitions"] == 0
    assert broken(db) == {}


def test_delete_on_one_queue(api: Api):
    for queue in ("q/1", "r"):
        api.push(queue, 1)
        api.take(queue, "a/g")
    answer = api.delete("consumer-groups/a%2Fg/queues/q%2F1")
    assert answer == {
        "success": True,
        "consumerGroup": "a/g",
        "deletedPartitions": 1,
        "metadataDeleted": True,
        "queueName": "q/1",
    }
    assert (api.take("q/1", "a/g"), api.take("r", "a/g")) == ([1], [])


def test_delete_that_keeps_the_subscription(api: Api, db: psycopg.Connection):
    """It starts where it did, not where a new one would."""
    api.push("q", "before")
    pass_time(db, 60)
    api.pop("q", "g", subscriptionMode="new")
    api.push("q", "after")
    assert api.take("q", "g") == ["after"]
    answer = api.delete("consumer-groups/g/queues/q", deleteMetadata="false")
    assert (answer["deletedPartitions"], answer["metadataDeleted"]) == (1, False)
    assert api.take("q", "g", subscriptionMode="all") == ["after"]


def test_a_queue_that_is_made_again_has_no_stale_subscription(api: Api, db: psycopg.Connection):
    api.push("q", 1)
    api.pop("q", "g", subscriptionMode="new")
    api.delete("resources/queues/q")
    api.push("q", 2)
    pass_time(db, 60)
    assert api.take("q", "g", subscriptionMode="all") == [2]


def test_subscription(api: Api):
    api.push("q", 1)
    api.take("q", "g")
    time = "2024-01-31T12:00:00.000Z"
    answer = api.post("consumer-groups/g/subscription", {"subscriptionTimestamp": time})
    assert answer == {"success": True, "consumerGroup": "g", "newTimestamp": time, "rowsUpdated": 1}
    (row,) = api.get("consumer-groups")
    assert (row["subscriptionMode"], row["subscriptionTimestamp"]) == ("timestamp", time)
    assert api.take("q", "g") == [], "where it is stays"
    assert api.post("consumer-groups/nobody/subscription", {"subscriptionTimestamp": time})["rowsUpdated"] == 0


@pytest.mark.parametrize("body", [None, {}, {"subscriptionTimestamp": ""}])
def test_a_subscription_needs_a_time(api: Api, body: Any):
    answer = api.post("consumer-groups/g/subscription", body, expect=400)
    assert answer["error"] == "Missing subscriptionTimestamp in request body"
    assert api.post("consumer-groups/g/subscription", {"subscriptionTimestamp": "x"}, expect=400)["error"]


def test_seek_to_the_end_and_back(api: Api, db: psycopg.Connection):
    api.push("q", 1)
    api.push("q", 2, partition="p")
    pass_time(db, 60)
    middle = datetime.now(UTC).isoformat()
    api.push("q", 3)
    answer = api.post("consumer-groups/g/queues/q/seek", {"toEnd": True})
    assert answer == {
        "success": True,
        "consumerGroup": "g",
        "queueName": "q",
        "seekToEnd": True,
        "targetTimestamp": None,
        "partitionsUpdated": 2,
    }
    assert api.take("q", "g", subscriptionMode="all") == [], "also of a group that never popped"
    answer = api.post("consumer-groups/g/queues/q/seek", {"timestamp": middle})
    assert (answer["seekToEnd"], answer["targetTimestamp"]) == (False, middle)
    assert api.take("q", "g") == [3]
    api.post("consumer-groups/g/queues/q/seek", {"timestamp": "2020-01-01T00:00:00Z"})
    assert sorted(api.take("q", "g", subscriptionMode="new")) == [1, 2, 3], "no subscription undoes it"
    assert broken(db) == {}


@pytest.mark.parametrize("body", [None, {}, {"toEnd": False}, {"timestamp": None}, {"timestamp": ""}, {"position": ""}])
def test_seek_needs_a_place(api: Api, body: Any):
    answer = api.post("consumer-groups/g/queues/q/seek", body, expect=400)
    assert answer["error"].startswith("Must specify either 'toEnd': true or 'timestamp', or a 'position'")


@pytest.mark.parametrize(
    ("position", "taken"),
    [("beginning", [1, 2, 3]), ("BEGINNING", [1, 2, 3]), ("end", []), (1, [2, 3]), ("2", [3]), (9, []),
     ("2020-01-01T00:00:00Z", [1, 2, 3]), ("2099-01-01", [])],
)  # fmt: skip
def test_seek_to_a_position(api: Api, position: str | int, taken: list[int]):
    api.push("q", 1, 2, 3)
    assert api.take("q", "g") == [1, 2, 3]
    api.push("q", 7, partition="p")
    path = "consumer-groups/g/queues/q"
    answer = api.post(f"{path}/seek", {"position": position})
    assert (answer["seekToEnd"], answer["partitionsUpdated"]) == (position == "end", 2)
    assert sorted(each for each in api.take("q", "g") if each != 7) == taken
    assert api.post(f"{path}/partitions/Default/seek", {"position": position})["updated"] is True
    assert api.take("q", "g") == taken


@pytest.mark.parametrize(
    "path", ["consumer-groups/g/queues/q/seek", "consumer-groups/g/queues/q/partitions/Default/seek"]
)
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"position": "middle"}, "position cannot be 'middle'; it is `beginning`, `end`, an offset, or a time"),
        ({"position": "-1"}, "position cannot be '-1'"),
        ({"position": -1}, "position"),
        ({"position": "9" * 30}, "999"),
        ({"position": "end", "timestamp": "2020-01-01T00:00:00Z"}, "position stands alone"),
        ({"position": 0, "toEnd": True}, "position stands alone"),
    ],
)
def test_seek_to_what_is_no_position(api: Api, path: str, body: Any, error: str):
    api.push("q", 1)
    assert error in api.post(path, body, expect=400)["error"]
    assert api.take("q", "g") == [1]


def test_seek_to_what_is_no_time(api: Api):
    answer = api.post("consumer-groups/g/queues/q/seek", {"timestamp": "x"}, expect=400)
    assert answer["error"].startswith("timestamp is not a time")


def test_seek_in_a_partition(api: Api):
    *_, last = api.push("q", 1, 2)
    api.push("q", 3, partition="p")
    path = "consumer-groups/g/queues/q/partitions"
    assert api.post(f"{path}/Default/seek") == {
        "success": True,
        "consumerGroup": "g",
        "queueName": "q",
        "partitionName": "Default",
        "updated": True,
        "cursorMovedTo": last["message_id"],
    }
    assert api.take("q", "g") == [3]
    answer = api.post(f"{path}/Default/seek", {"timestamp": "2020-01-01T00:00:00Z"})
    assert (answer["updated"], answer["cursorMovedTo"]) == (True, None)
    assert api.take("q", "g") == [1, 2]


def test_seek_in_no_partition(api: Api):
    api.push("q", 1)
    for queue, partition in (("q", "nowhere"), ("nobody", "Default")):
        answer = api.post(f"consumer-groups/g/queues/{queue}/partitions/{partition}/seek", expect=404)
        assert (answer["success"], answer["error"]) == (False, "Partition not found")
    assert api.get("consumer-groups") == [], "nothing is left behind"


def test_refresh(api: Api, db: psycopg.Connection):
    api.push("a.x", 1)
    api.push("b.x", 1, partition="p")
    answer = api.post("stats/refresh")
    assert answer == {"partition": 2, "queue": 2, "namespace": 2, "task": 1, "system": 1, "cleanup": 0}
    again = api.post("stats/refresh", {})
    assert (again["skipped"], "reason" in again) == (True, True)
