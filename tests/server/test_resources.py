"""Queues, partitions, namespaces and tasks with their sizes."""

from typing import Any

import psycopg

from tests.engine.plans import FREEZE, explained, scans
from tests.engine.verbs import broken, pass_time
from tests.server.api import Api

pytest_plugins = ["tests.server.fixtures"]

SIX = {"total", "pending", "processing", "completed", "failed", "deadLetter"}


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("total", "pending", "processing", "completed", "failed", "deadLetter"))


def test_queues_newest_first(api: Api):
    api.post("configure", {"queue": "a", "namespace": "ns", "task": "t"}, expect=201)
    api.push("b", 1, 2, 3)
    api.pop("b", batch=1)
    newest, oldest = api.get("resources/queues")["queues"]
    assert newest.keys() == {"id", "name", "namespace", "task", "createdAt", "partitions", "messages"}
    assert (newest["name"], newest["partitions"]) == ("b", 1)
    assert newest["messages"] == {"total": 3, "pending": 2, "processing": 1}
    assert (oldest["name"], oldest["namespace"], oldest["task"]) == ("a", "ns", "t")
    assert oldest["messages"] == {"total": 0, "pending": 0, "processing": 0}


def test_one_queue(api: Api):
    api.push("q", 1, 2, 3, 4)
    api.push("q", 5, partition="p")
    shown = api.get("resources/queues/q")
    assert shown.keys() == {"id", "name", "namespace", "task", "createdAt", "partitions", "totals"}
    assert [lane["name"] for lane in shown["partitions"]] == ["Default", "p"]
    lane = shown["partitions"][0]
    assert lane.keys() == {"id", "name", "createdAt", "stats", "oldestMessage", "newestMessage"}
    assert (lane["stats"].keys(), shown["totals"].keys()) == (SIX, SIX)
    assert (counts(lane["stats"]), counts(shown["totals"])) == ((4, 4, 0, 0, 0, 0), (5, 5, 0, 0, 0, 0))
    assert api.get("resources/queues/nobody", expect=404)["error"] == "Queue not found"


def test_states_add_up(api: Api):
    """Seen from the group that is furthest behind; without any group everything is pending."""
    api.post("configure", {"queue": "q", "options": {"retryDelay": 60_000}}, expect=201)
    api.push("q", *range(10))
    api.take("q", "fast")
    assert counts(api.get("resources/queues/q")["totals"]) == (10, 0, 0, 10, 0, 0)
    api.take("q", "slow", batch=3)
    api.ack(api.pop("q", "slow", batch=1), "dlq")
    assert counts(api.get("resources/queues/q")["totals"]) == (10, 6, 0, 4, 0, 1)
    held = api.pop("q", "slow", batch=2)
    assert counts(api.get("resources/queues/q")["totals"]) == (10, 4, 2, 4, 0, 1)
    api.ack(held[:1], "failed")  # ends the lease: both come again
    assert counts(api.get("resources/queues/q")["totals"]) == (10, 6, 0, 4, 2, 1)
    api.delete("consumer-groups/slow")
    assert counts(api.get("resources/queues/q")["totals"]) == (10, 0, 0, 10, 0, 1)


def test_an_empty_queue(api: Api):
    api.post("configure", {"queue": "q"}, expect=201)
    shown = api.get("resources/queues/q")
    (lane,) = shown["partitions"]
    assert (lane["oldestMessage"], lane["newestMessage"], counts(shown["totals"])) == (None, None, (0,) * 6)


def test_partitions(api: Api):
    for name in ("b", "a"):
        api.push("q", 1, partition=name)
    api.push("r", 1)
    rows = api.get("resources/partitions", queue="q")["partitions"]
    assert [(row["queue"], row["name"]) for row in rows] == [("q", "a"), ("q", "b")]
    assert rows[0].keys() == {"id", "name", "queue", "createdAt", "stats", "oldestMessage", "newestMessage"}
    everything = api.get("resources/partitions")["partitions"]
    pages = [api.get("resources/partitions", limit=2, offset=offset)["partitions"] for offset in (0, 2)]
    assert (
        [row["name"] for page in pages for row in page] == [row["name"] for row in everything] == ["a", "b", "Default"]
    )
    assert api.get("resources/partitions", queue="nobody")["partitions"] == []


def test_namespaces_and_tasks(api: Api):
    for queue in ("a.x", "a.y", "b.x"):
        api.push(queue, 1, 2)
    api.take("a.x")
    namespaces = api.get("resources/namespaces")["namespaces"]
    assert namespaces == [
        {"namespace": "a", "queues": 2, "partitions": 2, "messages": {"total": 4, "pending": 2}},
        {"namespace": "b", "queues": 1, "partitions": 1, "messages": {"total": 2, "pending": 2}},
    ]
    tasks = api.get("resources/tasks")["tasks"]
    assert [(task["task"], task["queues"], task["messages"]["pending"]) for task in tasks] == [("x", 2, 2), ("y", 1, 2)]
    assert tasks[0].keys() == {"task", "queues", "partitions", "messages"}


def test_overview(api: Api, db: psycopg.Connection):
    api.push("a.x", 1, 2)
    api.push("b.y", 1, partition="p")
    empty = api.get("resources/overview")
    assert (empty["statsAge"], empty["lag"]["time"]) == (-1, {"avg": 0, "median": 0, "min": 0, "max": 0})
    api.take("a.x", "g", batch=1)
    db.execute("SELECT skep.sample('0')")
    pass_time(db, 30)
    api.push("a.x", *range(60))
    db.execute("SELECT skep.sample('0')")
    shown = api.get("resources/overview")
    assert shown.keys() == {
        "queues", "partitions", "namespaces", "tasks", "messages", "lag", "throughput", "timestamp", "statsAge",
    }  # fmt: skip
    assert (shown["queues"], shown["partitions"], shown["namespaces"], shown["tasks"]) == (2, 2, 2, 2)
    assert (shown["messages"].keys(), shown["messages"]["total"], shown["messages"]["completed"]) == (SIX, 63, 1)
    assert shown["lag"]["offset"] == {"avg": 61, "median": 61, "min": 61, "max": 61}
    assert shown["lag"]["time"]["max"] >= 30
    assert shown["throughput"] == {"ingestedPerSecond": 1, "processedPerSecond": 0}
    assert 0 <= shown["statsAge"] < 30


def test_depth(api: Api):
    api.push("q", 1, 2, 3)
    api.push("q", 4, partition="p")
    api.take("q", "g", batch=2)
    depth = api.get("resources/queues/q/depth", group="g")
    assert depth.keys() == {
        "queue", "group", "pending", "partitionsPending", "conflation", "effectivePending", "partitions",
    }  # fmt: skip
    assert (depth["queue"], depth["group"], depth["pending"], depth["effectivePending"]) == ("q", "g", 2, 2)
    assert sum(lane["pending"] for lane in depth["partitions"]) == 2
    assert depth["partitionsPending"] == len(depth["partitions"])
    queue_mode = api.get("resources/queues/q/depth")
    assert (queue_mode["group"], queue_mode["pending"]) == ("__QUEUE_MODE__", 4)
    assert api.get("resources/queues/nobody/depth", expect=404)["error"] == "Queue not found"


def test_depth_of_a_group_that_wants_the_last_value_only(api: Api, db: psycopg.Connection):
    api.push("q", 1, 2, 3)
    api.push("q", 4, 5, partition="p")
    api.post("consumer-groups/g/queues/q/seek", {"timestamp": "2020-01-01T00:00:00Z"})
    db.execute("UPDATE skep.subscriptions SET conflation = true")
    depth = api.get("resources/queues/q/depth", group="g")
    assert (depth["conflation"], depth["pending"], depth["effectivePending"]) == (True, 5, 2)


def test_clear(api: Api, db: psycopg.Connection):
    """Messages go, lanes, offsets and groups stay, and what comes next is delivered."""
    api.push("q", 1, 2, 3, ids=["a", "b", "c"])
    api.push("q", 4, partition="p")
    (held,) = api.pop("q", "g", batch=1)
    assert api.delete("queues/q/clear", partition="p") == {
        "success": True,
        "queue": "q",
        "partition": "p",
        "cleared": 1,
    }
    assert counts(api.get("resources/queues/q")["totals"])[0] == 3
    assert api.delete("queues/q/clear")["cleared"] == 3
    assert counts(api.get("resources/queues/q")["totals"]) == (0,) * 6
    assert api.take("q", "g") == api.take("q", "late", subscriptionMode="all") == []
    answer = {name: held[name] for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
    (verdict,) = api.post("ack", answer)
    assert not verdict["success"]
    stored = api.push("q", "new", ids=["a"])
    assert (stored[0]["status"], stored[0]["offset"]) == ("queued", 3)
    assert api.take("q", "g") == api.take("q", "late") == ["new"]
    assert broken(db) == {}
    assert 'no queue "nobody"' in api.delete("queues/nobody/clear", expect=404)["error"]


def test_what_is_cleared_was_not_consumed(api: Api, db: psycopg.Connection):
    api.push("q", *range(10))
    api.take("q", "g", batch=4)
    api.delete("queues/q/clear")
    (lane,) = api.get("consumer-groups/g")["q"]["partitions"]
    assert (lane["totalConsumed"], lane["offsetLag"]) == (4, 0)
    (listed,) = api.get("status")["queues"]
    assert listed["totalConsumed"] == 4


def test_sizes_read_no_messages(api: Api, db: psycopg.Connection):
    db.execute(FREEZE)
    for _ in range(10):
        api.push("q", *range(1000))
    api.take("q", "g", batch=500)
    for query in (
        "_queen_queues(NULL, NULL, NULL, NULL, 0)",
        "_queen_overview(NULL)",
        "_queen_queue('q')",
        "_queen_groups(NULL)",
    ):
        plans = explained(db, lambda query=query: db.execute(f"SELECT skep.{query}".encode()), analyze=True)
        assert ("messages", None) not in scans(plans)
        assert sum(plan.rows_touched() for plan in plans) < 100


def test_a_group_counts_only_in_partitions_it_subscribes_to(api: Api):
    api.push("q", 1, 2)
    api.push("q", 3, partition="p")
    api.take("q", "all of it")
    messages = api.get("pop/queue/q/partition/p", consumerGroup="one", batch=10)["messages"]
    api.ack(messages)
    assert counts(api.get("resources/queues/q")["totals"]) == (3, 0, 0, 3, 0, 0)
    assert {row["status"] for row in api.get("messages", queue="q")["messages"]} == {"completed"}
    assert len(api.get("messages", queue="q", status="completed")["messages"]) == 3


def test_groups_that_nothing_is_owed_to_do_not_count(api: Api, db: psycopg.Connection):
    api.push("q", 1, 2, 3)
    api.take("q", "alive")
    api.take("q", "gone", batch=1)
    assert counts(api.get("resources/queues/q")["totals"]) == (3, 2, 0, 1, 0, 0)
    db.execute("SELECT skep.cancel('gone', 'q')")
    assert counts(api.get("resources/queues/q")["totals"]) == (3, 0, 0, 3, 0, 0)
