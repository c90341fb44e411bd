"""GET /api/v1/pop…: shapes, empty answers, waiting, groups, many at once."""

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from skep import Skep
from tests.server.serving import Client

Beside = Callable[..., Future[Any]]


def test_an_answer_with_messages(client: Client):
    (stored,) = client.push("shape", {"n": 1}, partition="p", transactionId="t")
    answer = client.get("/api/v1/pop/queue/shape", consumerGroup="g").json
    (message,) = answer.pop("messages")
    lease = answer["leaseId"]
    assert answer == {
        "success": True,
        "queue": "shape",
        "partition": "p",
        "partitionId": stored["partition_id"],
        "leaseId": lease,
        "consumerGroup": "g",
        "partitionsClaimed": 1,
    }
    created = message.pop("createdAt")
    assert len(created) == len("2026-01-01T00:00:00.000000Z")
    assert created.endswith("Z")
    assert message == {
        "id": stored["message_id"],
        "transactionId": "t",
        "traceId": None,
        "data": {"n": 1},
        "producerSub": None,
        "queue": "shape",
        "partition": "p",
        "partitionId": stored["partition_id"],
        "leaseId": lease,
        "consumerGroup": "g",
        "offset": 0,
        "deliveryAttempt": 1,
        "headers": None,
    }


def test_names_of_any_kind_come_out_as_they_are(client: Client):
    name = 'q "quoted" \\ é \u2028'
    client.push(name, 1, partition=name, transactionId=name)
    (message,) = client.pop(name, consumerGroup=name)
    assert [message[key] for key in ("queue", "partition", "transactionId", "consumerGroup")] == [name] * 4


def test_a_queue_that_does_not_exist_is_empty(client: Client):
    answer = client.get("/api/v1/pop/queue/nobody/partition/p")
    assert answer.status == 200
    assert answer.json == {
        "success": True,
        "queue": "nobody",
        "partition": "p",
        "partitionId": None,
        "leaseId": None,
        "consumerGroup": "__QUEUE_MODE__",
        "messages": [],
    }


def test_batch_is_the_limit_of_all_partitions_together(client: Client):
    for lane in range(4):
        client.push("lanes", *range(3), partition=f"p{lane}")
    answer = client.get("/api/v1/pop/queue/lanes", batch=7, partitions=10).json
    assert answer["partitionsClaimed"] == 3
    lanes = [message["partition"] for message in answer["messages"]]
    assert len(lanes) == 7
    assert lanes == sorted(lanes, key=lanes.index)  # the messages of a partition stand together


def test_a_leased_partition_is_not_given_again(client: Client):
    client.push("leased", 1, 2)
    assert len(client.pop("leased", batch=1)) == 1
    assert client.pop("leased", batch=1) == []
    assert len(client.pop("leased", batch=1, consumerGroup="other")) == 1


def test_auto_ack_needs_no_answer_and_gives_no_lease(client: Client):
    client.push("auto", 1, 2)
    answer = client.get("/api/v1/pop/queue/auto", autoAck="true", batch=1).json
    assert (answer["leaseId"], answer["messages"][0]["leaseId"]) == ("", "")
    assert [message["data"] for message in client.pop("auto", autoAck="true")] == [2]


def test_one_partition_by_name(client: Client):
    client.push("named", "a", partition="a")
    client.push("named", "b", partition="b")
    assert [m["data"] for m in client.get("/api/v1/pop/queue/named/partition/b", batch=9).json["messages"]] == ["b"]


def test_by_namespace_and_task(client: Client):
    client.push("shop.orders", 1)
    client.push("shop.bills", 2)
    got = [
        client.get("/api/v1/pop", namespace="shop", task=task).json["messages"][0]["data"]
        for task in ("orders", "bills")
    ]
    assert got == [1, 2]
    assert client.get("/api/v1/pop").status == 400


@pytest.mark.parametrize(
    "query",
    [{"batch": "x"}, {"batch": "-5"}, {"timeout": "x"}, {"partitions": "0"}, {"wait": "maybe"}, {"unknown": "1"}],
)
def test_parameters_that_mean_nothing_get_the_default(client: Client, query: dict[str, str]):
    queue = f"odd-{next(iter(query))}-{next(iter(query.values()))}"
    client.push(queue, 1)
    assert len(client.get(f"/api/v1/pop/queue/{queue}", **query).json["messages"]) == 1


def test_autopilot_takes_many(client: Client):
    client.push("pilot", *range(50))
    assert len(client.get("/api/v1/pop/queue/pilot", autopilot="true").json["messages"]) == 50
    client.push("pilot-one", *range(50))
    assert len(client.get("/api/v1/pop/queue/pilot-one", autopilot="true", batch=2).json["messages"]) == 2


def test_lease_seconds_are_the_wish_of_the_request(client: Client):
    client.push("short", 1)
    client.pop("short", leaseSeconds=1)
    start = time.monotonic()
    (message,) = client.pop("short", wait="true", timeout=8000)
    assert message["deliveryAttempt"] == 2
    assert 0.8 < time.monotonic() - start < 5


def test_a_wait_ends_with_a_push_or_with_its_time(client: Client, in_thread: Beside):
    start = time.monotonic()
    assert client.pop("waiting", wait="true", timeout=300) == []
    assert 0.29 < time.monotonic() - start < 2
    waiting = in_thread(client.pop, "waiting", wait="true", timeout=10_000)
    time.sleep(0.1)
    client.push("waiting", "here")
    assert [message["data"] for message in waiting.result()] == ["here"]


def test_a_push_serves_as_many_waiters_as_it_has_partitions_for(client: Client, in_thread: Beside):
    waiting = [in_thread(client.pop, "crowd", wait="true", timeout=4000, batch=1) for _ in range(8)]
    time.sleep(0.2)
    for lane in range(5):
        client.push("crowd", lane, partition=f"p{lane}")
    got = [message["data"] for each in waiting for message in each.result()]
    assert sorted(got) == [0, 1, 2, 3, 4]


def test_many_at_once_get_every_message_once(client: Client, in_thread: Beside):
    for lane in range(20):
        client.push("busy", *[[lane, n] for n in range(10)], partition=f"p{lane}")

    def consume() -> list[Any]:
        got: list[Any] = []
        while messages := client.pop("busy", autoAck="true", batch=3):
            got += [message["data"] for message in messages]
        return got

    everything = [data for each in [in_thread(consume) for _ in range(8)] for data in each.result()]
    assert sorted(everything) == [[lane, n] for lane in range(20) for n in range(10)]


@pytest.mark.parametrize("mode", ["new", "new-only"])
def test_a_new_group_may_start_behind_what_is_there(client: Client, mode: str):
    """H6, H7: the first poll counts, even on a queue without partitions."""
    assert client.pop(f"birth-{mode}", consumerGroup="g", subscriptionMode=mode) == []
    client.push(f"birth-{mode}", "after")
    assert [m["data"] for m in client.pop(f"birth-{mode}", consumerGroup="g")] == ["after"]


def test_from_a_time(client: Client):
    client.push("timed", "old")
    (old,) = client.pop("timed", consumerGroup="peek")
    later = old["createdAt"].replace("Z", "+00:00")
    client.push("timed", "new")
    got = client.pop("timed", consumerGroup="g", subscriptionFrom=f"{later}")
    assert got[-1]["data"] == "new"


@pytest.fixture
def default_new(module_database_url: str) -> Generator[None]:
    """Groups that say nothing begin behind what is there."""
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        connection.execute("SELECT skep.configure_defaults('new', 0.01)")
        yield
        connection.execute("SELECT skep.configure_defaults('all', 2)")


EVERYTHING: list[str] = ["old"]
NOTHING: list[str] = []


@pytest.mark.usefixtures("default_new")
@pytest.mark.parametrize(
    ("wish", "got"),
    {
        "nothing": ({}, NOTHING),
        "empty": ({"subscriptionMode": "", "subscriptionFrom": ""}, NOTHING),
        "all": ({"subscriptionMode": "all"}, EVERYTHING),
        "loud": ({"subscriptionMode": "FROM_BEGINNING"}, EVERYTHING),
        "now": ({"subscriptionMode": "now"}, NOTHING),
        "time": ({"subscriptionFrom": "2026-01-31T12:00:00Z"}, EVERYTHING),
        "mode beside a time": ({"subscriptionMode": "new", "subscriptionFrom": "2026-01-31 12:00"}, EVERYTHING),
        "timestamp": ({"subscriptionMode": "timestamp", "subscriptionFrom": "2026-01-31"}, EVERYTHING),
        "mode beside now": ({"subscriptionMode": "all", "subscriptionFrom": "NOW"}, NOTHING),
        "offset": ({"subscriptionMode": "offset", "subscriptionFrom": "0"}, EVERYTHING),
        "offset behind": ({"subscriptionMode": "offset", "subscriptionFrom": "1"}, NOTHING),
    }.values(),
)
def test_a_group_that_says_where_it_starts_does_not_get_the_default(
    client: Client, wish: dict[str, str], got: list[str]
):
    queue = f"said-{'-'.join(wish)}-{'-'.join(wish.values())}"
    client.push(queue, "old")
    time.sleep(0.1)  # older than twice the poll interval, from where a new group starts
    for group in ("g", "h"):  # a group that is not new here keeps where it began
        assert [m["data"] for m in client.pop(queue, consumerGroup=group, **wish)] == got


@pytest.mark.parametrize("mode", ["all", "now", "from_now", "new"])
def test_modes_mean_what_they_say_under_the_usual_default(client: Client, module_database_url: str, mode: str):
    client.pop("kept-mode", consumerGroup=mode, subscriptionMode=mode)
    with Skep(module_database_url) as mq:
        (stored,) = mq.subscriptions(mode, "kept-mode")
    assert stored.mode == ("all" if mode == "all" else "new")


@pytest.mark.parametrize("group", [{}, {"consumerGroup": "g"}])
@pytest.mark.parametrize(
    ("wish", "allowed"),
    [
        ({"subscriptionMode": "latest"}, "all, from_beginning"),
        ({"subscriptionFrom": "no time at all"}, "`now`, a time"),
        ({"subscriptionMode": "new", "subscriptionFrom": "yesterday"}, "`now`, a time"),
        ({"subscriptionFrom": "9999-12-31T23:59:59-23:59"}, "`now`, a time"),
        ({"subscriptionFrom": "-infinity"}, "`now`, a time"),
    ],
)
def test_a_start_that_nobody_knows_is_refused(
    client: Client, module_database_url: str, group: dict[str, str], wish: dict[str, str], allowed: str
):
    refused = client.get("/api/v1/pop/queue/unborn", **group, **wish)
    assert refused.status == 400
    assert list(wish)[-1] in refused.json["error"]
    assert allowed in refused.json["error"]
    with Skep(module_database_url) as mq:
        assert mq.subscriptions(queue="unborn") == []


@pytest.mark.parametrize("mode", ["timestamp", "offset", "message_id"])
@pytest.mark.parametrize("start", [{}, {"subscriptionFrom": "x"}])
def test_a_mode_that_needs_a_place_needs_a_good_one(client: Client, mode: str, start: dict[str, str]):
    refused = client.get("/api/v1/pop/queue/placeless", consumerGroup="g", subscriptionMode=mode, **start)
    assert refused.status == 400


def test_conflation_gives_the_newest_of_each_partition(client: Client):
    client.push("prices", *range(10), partition="a")
    client.push("prices", 100, partition="b")
    answer = client.get("/api/v1/pop/queue/prices", conflation="true", consumerGroup="g", batch=1000, partitions=9).json
    assert answer["conflation"] is True
    assert sorted(message["data"] for message in answer["messages"]) == [9, 100]
    acks = [
        {key: message[key] for key in ("transactionId", "partitionId", "leaseId")} for message in answer["messages"]
    ]
    client.post("/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "g"})
    empty = client.get("/api/v1/pop/queue/prices", conflation="true", consumerGroup="g").json
    assert (empty["messages"], empty["conflation"]) == ([], True)
    client.pop("prices", consumerGroup="plain", batch=1)
    other = client.get("/api/v1/pop/queue/prices", conflation="true", consumerGroup="plain", batch=2).json
    assert (other["conflation"], other["conflationConflict"]) == (False, True)
    assert client.get("/api/v1/pop/queue/prices", conflation="true").status == 400
    assert client.get("/api/v1/pop/queue/prices", conflation="true", consumerGroup="g", autoAck="true").status == 400
