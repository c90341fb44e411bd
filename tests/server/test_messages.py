"""Messages as an administrator sees them: browse, show, delete, bring back, take out, read by offset."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.engine.plans import explained
from tests.engine.verbs import broken, pass_time
from tests.server.api import Api

pytest_plugins = ["tests.server.fixtures"]

KEYS = "k1:" + "ab" * 32
LISTED = {
    "id", "transactionId", "partitionId", "queuePath", "queue", "partition", "namespace", "task", "status",
    "queueStatus", "busStatus", "traceId", "producerSub", "queuePriority", "createdAt", "leaseExpiresAt", "offset",
}  # fmt: skip
SHOWN = {
    "id", "transactionId", "partitionId", "queuePath", "queue", "partition", "namespace", "task", "status", "payload",
    "isEncrypted", "traceId", "producerSub", "createdAt", "errorMessage", "retryCount", "leaseExpiresAt",
    "queueConfig", "mode", "consumerGroups", "offset", "headers",
}  # fmt: skip


def listed(api: Api, **query: Any) -> list[str]:
    return [row["transactionId"] for row in api.get("messages", **query)["messages"]]


def path(stored: dict[str, Any], *more: str) -> str:
    return "/".join(["messages", stored["partition_id"], quote(stored["transaction_id"], safe=""), *more])


def test_a_list_has_everything_but_payloads_newest_first(api: Api):
    api.push("ns.task", "old", ids=["a"])
    api.push("ns.task", "new", ids=["b"], partition="p")
    answer = api.get("messages")
    assert [row["transactionId"] for row in answer["messages"]] == ["b", "a"]
    assert all(row.keys() == LISTED for row in answer["messages"])
    row = answer["messages"][0]
    assert (row["queuePath"], row["queue"], row["partition"]) == ("ns.task/p", "ns.task", "p")
    assert (row["namespace"], row["task"], row["status"], row["queueStatus"]) == ("ns", "task", "pending", "pending")
    assert row["busStatus"] == {"consumedBy": 0, "totalGroups": 0}
    assert (row["leaseExpiresAt"], row["createdAt"][-1], len(row["createdAt"])) == (None, "Z", 24)
    assert answer["mode"] == {"hasQueueMode": False, "busGroupsCount": 0, "type": "none"}


def test_filters(api: Api):
    api.push("a.x", 1, ids=["ax"])
    api.push("a.y", 1, ids=["ay"], partition="p")
    api.push("b.x", 1, ids=["bx"], partition="p")
    assert listed(api, queue="a.x") == ["ax"]
    assert listed(api, partition="p") == ["bx", "ay"]
    assert listed(api, ns="a") == ["ay", "ax"]
    assert listed(api, task="x") == ["bx", "ax"]
    assert listed(api, ns="a", task="x") == ["ax"]
    assert listed(api, queue="a.%") == listed(api, partition="%") == listed(api, queue="nobody") == []


def test_time(api: Api, db: psycopg.Connection):
    """The last hour, unless another time is asked for; the end is that of its minute."""
    api.push("q", 1, ids=["old"])
    pass_time(db, 7200)
    api.push("q", 1, ids=["new"])
    assert listed(api) == ["new"]
    now = datetime.now(UTC)
    early = (now - timedelta(hours=3)).isoformat()
    assert listed(api, **{"from": early}) == ["new", "old"]
    assert listed(api, **{"from": early, "to": (now - timedelta(hours=1)).isoformat()}) == ["old"]
    assert listed(api, to=now.replace(second=0, microsecond=0).isoformat()) == ["new"]
    assert api.get("messages", expect=400, **{"from": "yesterday"})["error"].startswith("from is not a time")
    assert api.get("messages", expect=400, **{"from": now.isoformat(), "to": early})["error"] == "from is later than to"


def test_states_of_queue_mode(api: Api):
    api.push("q", 1, 2, 3, 4, ids=["done", "dead", "leased", "pending"])
    api.ack(api.pop("q", batch=1))
    api.ack(api.pop("q", batch=1), "dlq")
    api.pop("q", batch=1)
    states = {row["transactionId"]: (row["status"], row["queueStatus"]) for row in api.get("messages")["messages"]}
    assert states == {
        "done": ("completed", "completed"),
        "dead": ("dead_letter", "dead_letter"),
        "leased": ("processing", "processing"),
        "pending": ("pending", "pending"),
    }
    for status, name in [("completed", "done"), ("dead_letter", "dead"), ("processing", "leased")]:
        assert listed(api, status=status) == [name]
    assert listed(api, status="pending") == ["pending"]
    (leased,) = api.get("messages", status="processing")["messages"]
    assert leased["leaseExpiresAt"] > leased["createdAt"]
    assert api.get("messages")["mode"] == {"hasQueueMode": True, "busGroupsCount": 0, "type": "queue"}


def test_states_of_groups(api: Api):
    """Completed is what every group is past."""
    api.push("q", 1, 2, ids=["a", "b"])
    api.take("q", "fast")
    api.take("q", "slow", batch=1)
    rows = {row["transactionId"]: row for row in api.get("messages")["messages"]}
    assert (rows["a"]["status"], rows["a"]["busStatus"]) == ("completed", {"consumedBy": 2, "totalGroups": 2})
    assert (rows["b"]["status"], rows["b"]["busStatus"]) == ("pending", {"consumedBy": 1, "totalGroups": 2})
    assert (listed(api, status="completed"), listed(api, status="pending")) == (["a"], ["b"])
    assert listed(api, status="processing") == []
    assert api.get("messages")["mode"] == {"hasQueueMode": False, "busGroupsCount": 2, "type": "bus"}


def test_a_message_that_two_groups_gave_up_is_listed_once(api: Api):
    api.push("q", 1, ids=["a"])
    for group in ("g", "h"):
        api.ack(api.pop("q", group), "dlq")
    assert listed(api) == listed(api, status="dead_letter") == ["a"]


def test_an_unknown_status_is_refused(api: Api):
    answer = api.get("messages", status="lost", expect=400)
    assert answer["error"] == "status is one of pending, processing, completed, dead_letter"


def test_pages_neither_repeat_nor_omit(api: Api):
    """However the messages are spread: one lane that has nearly all of them, and many that have one."""
    for start in range(0, 400, 100):
        api.push("q", *range(100), ids=[f"dense {start + n}" for n in range(100)])
        for n in range(10):
            api.push("q", n, ids=[f"sparse {start + n}"], partition=f"p{start + n}")
    whole = listed(api, limit=1000)
    assert len(set(whole)) == 440
    assert whole == sorted(whole, key=lambda name: -age(name))
    for size in (7, 100, 433):
        pages = [listed(api, limit=size, offset=offset) for offset in range(0, 440 + size, size)]
        assert [name for page in pages for name in page] == whole
    assert listed(api, offset=440) == []


def age(name: str) -> int:
    """The place in the order of pushes."""
    kind, _, number = name.partition(" ")
    lap, place = divmod(int(number), 100)
    return lap * 1000 + (place if kind == "dense" else 500 + place)


def test_a_page_is_never_longer_or_deeper_than_is_good(api: Api):
    assert "at most 10000" in api.get("messages", expect=400, offset=10_001)["error"]
    assert api.get("messages", limit=10**9, offset=10_000)["messages"] == []


def test_a_list_reads_about_as_much_as_it_shows(api: Api, db: psycopg.Connection):
    for _ in range(20):
        api.push("q", *range(1000))
    query = "SELECT skep._queen_messages('q', NULL, NULL, NULL, %s, now() - interval '1 h', 'infinity', NULL, 10, 0)"
    for state in (None, "pending", "completed", "processing", "dead_letter"):
        plans = explained(db, lambda state=state: db.execute(query, [state]), analyze=True)
        read = sum(
            node["Actual Rows"] * node["Actual Loops"]
            for plan in plans
            for node in plan.nodes()
            if node.get("Relation Name") == "messages"
        )
        assert read < 200, state
        assert not [node for plan in plans for node in plan.nodes() if node["Node Type"] == "Seq Scan"]


def test_one_message(api: Api):
    (stored,) = api.push("q", {"n": 1}, ids=["a/b c"])
    shown = api.get(path(stored))
    assert shown.keys() == SHOWN
    assert (shown["id"], shown["transactionId"], shown["payload"]) == (stored["message_id"], "a/b c", {"n": 1})
    assert (shown["status"], shown["isEncrypted"], shown["errorMessage"], shown["retryCount"]) == (
        "pending",
        False,
        None,
        0,
    )
    assert shown["queueConfig"] == {"leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "ttl": 3600, "priority": 0}
    assert shown["mode"] == {"hasQueueMode": False, "busGroupsCount": 0, "consumedByGroups": 0, "type": "none"}
    assert shown["consumerGroups"] == []
    assert api.get(f"messages/{stored['partition_id']}/a/b%20c") == shown, "clients do not encode the slash"
    assert api.get(f"messages/{stored['partition_id']}/{stored['message_id']}") == shown


def test_one_message_and_its_groups(api: Api):
    (stored,) = api.push("q", 1)
    api.take("q", "done")
    api.ack(api.pop("q", "dead"), "dlq", "broken")
    api.pop("q", "busy")
    shown = api.get(path(stored))
    assert [(group["name"], group["consumed"]) for group in shown["consumerGroups"]] == [
        ("busy", False),
        ("dead", True),
        ("done", True),
    ]
    assert [group["leaseExpiresAt"] is not None for group in shown["consumerGroups"]] == [True, False, False]
    assert (shown["status"], shown["errorMessage"], shown["retryCount"]) == ("dead_letter", "broken", 0)
    assert shown["mode"] == {"hasQueueMode": False, "busGroupsCount": 3, "consumedByGroups": 2, "type": "bus"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["nobody", "00000000-0000-8001-8000-000000000007", ""])
def test_no_such_message(api: Api, method: str, name: str):
    (stored,) = api.push("q", 1)
    for lane in (stored["partition_id"], "00000000-0000-8fff-bfff-ffffffffffff", "x"):
        answer = api.call(method, f"messages/{lane}/{name}")
        assert (answer.status, answer.json["error"]) == (404, "Message not found")


def test_delete(api: Api):
    stored, _ = api.push("q", 1, 2, ids=["a", "b"])
    deleted = api.delete(path(stored))
    assert deleted == {
        "success": True,
        "partitionId": stored["partition_id"],
        "transactionId": "a",
        "message": "Message deleted",
    }
    assert listed(api) == ["b"]
    assert api.get(path(stored), expect=404)
    assert api.delete(path(stored), expect=404)
    assert api.take("q") == [2]


def test_retry_gives_dead_letters_back_to_their_groups(api: Api):
    (stored,) = api.push("q", "m", ids=["a"])
    for group in ("g", "h"):
        api.ack(api.pop("q", group), "dlq")
    api.take("q", "fine")
    answer = api.post(path(stored, "retry"))
    assert (answer["success"], answer["transactionId"]) == (True, "a")
    assert [letter["consumerGroup"] for letter in answer["redriven"]] == ["g", "h"]
    assert (api.take("q", "g"), api.take("q", "h"), api.take("q", "fine")) == (["m"], ["m"], [])
    assert api.get("dlq")["total"] == 0
    assert api.post(path(stored, "retry"), {}, expect=404)["error"] == "Dead letter not found"


def test_retry_wakes_who_waits(api: Api):
    (stored,) = api.push("q", "m")
    api.ack(api.pop("q", "g"), "dlq")
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.extend(api.pop("q", "g", wait="true", timeout=20_000)))
    waiter.start()
    deadline = time.monotonic() + 10
    while not api.get("analytics/queue-parked-replicas")["series"]:
        assert time.monotonic() < deadline
    api.post(path(stored, "retry"))
    waiter.join()
    assert [message["data"] for message in got] == ["m"]


def test_to_the_dead_letters(api: Api, db: psycopg.Connection):
    """Of every group that is not done with it, also of one that holds it; nobody else gets it, and nothing is lost."""
    stored, _ = api.push("q", "m", "n", ids=["a", "b"])
    api.take("q", "done", batch=1)
    (held, _) = api.pop("q", "busy")
    api.post("consumer-groups/behind/queues/q/seek", {"timestamp": "2020-01-01T00:00:00Z"})
    answer = api.post(path(stored, "dlq"), {"error": "no good"})
    assert (answer["success"], answer["deadLetters"]) == (True, 2)
    letters = api.get("dlq")["messages"]
    assert sorted((row["consumerGroup"], row["errorMessage"], row["data"]) for row in letters) == [
        ("behind", "no good", "m"),
        ("busy", "no good", "m"),
    ]
    api.ack([held])
    assert api.get("dlq")["total"] == 2, "a late answer of who held it changes nothing"
    assert api.take("q", "behind") == ["n"]
    assert broken(db) == {}
    api.post(path(stored, "retry"))
    assert (api.take("q", "behind"), api.take("q", "busy")) == (["m"], ["m"])


def test_to_the_dead_letters_of_a_queue_nobody_reads(api: Api):
    stored, _ = api.push("q", 1, 2, ids=["a", "b"])
    assert api.post(path(stored, "dlq"))["deadLetters"] == 1
    (letter,) = api.get("dlq")["messages"]
    assert (letter["consumerGroup"], letter["transactionId"], letter["retryCount"]) == ("__QUEUE_MODE__", "a", 0)
    assert api.take("q") == [2]
    assert api.post(path(stored, "dlq"), expect=404)["error"] == "Message not found"


def test_what_every_group_has_done_is_not_buried(api: Api):
    (stored,) = api.push("q", 1)
    api.take("q", "g")
    assert "completed" in api.post(path(stored, "dlq"), expect=409)["error"]


def test_encrypted_payloads_are_shown_open(serve: Callable[..., Api]):
    api = serve(encryption_keys=KEYS)
    api.post("configure", {"queue": "secret", "options": {"encryptionEnabled": True}}, expect=201)
    (stored,) = api.push("secret", {"card": 42}, ids=["a"])
    shown = api.get(path(stored))
    assert (shown["payload"], shown["isEncrypted"]) == ({"card": 42}, True)
    api.ack(api.pop("secret"), "dlq")
    assert [row["data"] for row in api.get("dlq")["messages"]] == [{"card": 42}]
    entry = {"queue": "secret", "partition": "Default", "offset": 0}
    (fetched,) = api.post("fetch", {"entries": [entry]})["entries"]
    assert [record["payload"] for record in fetched["records"]] == [{"card": 42}]
    blind = serve()
    assert "encrypted" in blind.get(path(stored))["payload"]
    assert "k1" in blind.get(path(stored))["undecipherable"]


def test_fetch(api: Api):
    api.push("q", *range(5), ids=[f"t{n}" for n in range(5)])
    entries = [
        {"queue": "q", "partition": "Default", "offset": 3, "maxBytes": 1_000_000},
        {"queue": "q", "partition": "Default", "offset": 5, "maxBytes": 1000},
        {"queue": "q", "partition": "Default", "offset": 6, "maxBytes": 1000},
        {"queue": "q", "partition": "nowhere", "offset": 0, "maxBytes": 1000},
        {"queue": "nobody", "partition": "Default", "offset": 0, "maxBytes": 1000},
    ]
    read, end, beyond, no_partition, no_queue = api.post("fetch", {"entries": entries, "maxBytes": 10**9})["entries"]
    assert [(record["offset"], record["transactionId"], record["payload"]) for record in read["records"]] == [
        (3, "t3", 3),
        (4, "t4", 4),
    ]
    assert (read["highWatermark"], read["logStartOffset"], read["records"][0]["ts"][-1]) == (5, 0, "Z")
    assert "error" not in read
    assert (end["records"], end.get("error")) == ([], None)
    assert (beyond["records"], beyond["error"], beyond["highWatermark"]) == ([], "OFFSET_OUT_OF_RANGE", 5)
    assert no_partition["error"] == no_queue["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert api.post("fetch", {"entries": []}) == {"entries": []}
    assert api.post("fetch", {}, expect=400)["error"]
    assert api.post("fetch", expect=400)["error"] == "Empty request body"


def test_fetch_gives_one_record_however_large_and_skips_deleted_ones(api: Api):
    stored = api.push("q", "x" * 5000, "y" * 5000, "z", ids=["a", "b", "c"])
    entry = {"queue": "q", "partition": "Default", "offset": 0, "maxBytes": 4000}
    (read,) = api.post("fetch", {"entries": [entry]})["entries"]
    assert [record["offset"] for record in read["records"]] == [0]
    (read,) = api.post("fetch", {"entries": [entry | {"maxBytes": 11_000}]})["entries"]
    assert [record["offset"] for record in read["records"]] == [0, 1, 2]
    both = api.post("fetch", {"entries": [entry, entry], "maxBytes": 4000})["entries"]
    assert [len(each["records"]) for each in both] == [1, 0], "the bytes of all entries together are a limit as well"
    api.delete(path(stored[0]))
    api.delete(path(stored[1]))
    (read,) = api.post("fetch", {"entries": [entry]})["entries"]
    assert [record["offset"] for record in read["records"]] == [2]


def test_fetch_before_what_is_kept(api: Api):
    api.push("q", 1, 2)
    api.delete("queues/q/clear")
    (read,) = api.post("fetch", {"entries": [{"queue": "q", "partition": "Default", "offset": 0}]})["entries"]
    assert (read["error"], read["logStartOffset"], read["highWatermark"]) == ("OFFSET_OUT_OF_RANGE", 2, 2)


def test_changed_partitions(api: Api, db: psycopg.Connection):
    api.push("q", 1, partition="old")
    pass_time(db, 3600)
    for name in ("a", "b", "c"):
        api.push("q", 1, 2, partition=name)
    answer = api.post("partitions/changed", {"entries": [{"queue": "q", "limit": 100}, {"queue": "nobody"}]})
    everything, nothing = answer["entries"]
    assert [lane["name"] for lane in everything["partitions"]] == ["a", "b", "c", "old"]
    assert everything["partitions"][0].keys() == {"name", "id", "lastOffset", "logStart", "lastWriteAt"}
    assert (everything["partitions"][0]["lastOffset"], everything["partitions"][0]["logStart"]) == (1, 0)
    assert "next" not in everything
    assert nothing == {"partitions": [], "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    since = (datetime.now(UTC) - timedelta(minutes=10)).isoformat()
    entry: dict[str, Any] = {"queue": "q", "since": since, "limit": 2}
    (first,) = api.post("partitions/changed", {"entries": [entry]})["entries"]
    assert ([lane["name"] for lane in first["partitions"]], first["next"]) == (["a", "b"], "b")
    (second,) = api.post("partitions/changed", {"entries": [entry | {"after": first["next"]}]})["entries"]
    assert [lane["name"] for lane in second["partitions"]] == ["c"]


def test_safe_time_waits_for_open_transactions(api: Api, db: psycopg.Connection):
    """What is pushed but not committed is written after the safe time, so that it is found from there."""
    with psycopg.connect(db.info.dsn, password=db.info.password) as other:
        (pushed,) = other.execute("SELECT created_at FROM skep.push('q', '1')").fetchall()
        db.execute("SELECT pg_sleep(0.01)")
        answer = api.post("partitions/changed", {"entries": []})
        assert datetime.fromisoformat(answer["safeTime"]) <= pushed[0]
        other.rollback()
