"""Dead letters over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.engine.plans import FREEZE, explained
from tests.engine.verbs import pass_time
from tests.server.api import Api

pytest_plugins = ["tests.server.fixtures"]

FIELDS = {
    "id", "transactionId", "partitionId", "queue", "partition", "consumerGroup", "errorMessage", "retryCount", "data",
    "producerSub", "createdAt", "failedAt", "dlqId", "traceId", "headers",
}  # fmt: skip


def bury(api: Api, queue: str, *payloads: Any, group: str | None = None, partition: str = "Default") -> None:
    """Push, and give up one after the other."""
    api.push(queue, *payloads, partition=partition)
    for payload in payloads:
        api.ack(api.pop(queue, group, batch=1), "dlq", f"no {payload}")


def data(api: Api, **query: Any) -> list[Any]:
    return [row["data"] for row in api.get("dlq", **query)["messages"]]


def test_shape(api: Api):
    (stored,) = api.push("q", {"n": 1}, ids=["t"])
    api.ack(api.pop("q", "g"), "dlq", "broken")
    answer = api.get("dlq")
    (row,) = answer["messages"]
    assert row.keys() == FIELDS
    assert (row["id"], row["transactionId"], row["partitionId"]) == (stored["message_id"], "t", stored["partition_id"])
    assert (row["queue"], row["partition"], row["consumerGroup"]) == ("q", "Default", "g")
    assert (row["errorMessage"], row["retryCount"], row["data"]) == ("broken", 0, {"n": 1})
    assert row["failedAt"] >= row["createdAt"]
    assert (answer["total"], answer["pagination"]) == (1, {"limit": 100, "offset": 0})


def test_retries_are_counted(api: Api, db: psycopg.Connection):
    api.post("configure", {"queue": "q", "options": {"retryLimit": 1, "retryDelay": 0}}, expect=201)
    api.push("q", 1)
    for _ in range(2):
        api.ack(api.pop("q"), "failed", "again")
    (row,) = api.get("dlq", queue="q")["messages"]
    assert (row["retryCount"], row["errorMessage"]) == (1, "again")


def test_filters(api: Api, db: psycopg.Connection):
    bury(api, "q", "old", group="g")
    pass_time(db, 7200)
    bury(api, "q", "p", group="g", partition="p")
    bury(api, "q", "h", group="h", partition="h")
    bury(api, "r", "r")
    assert data(api, consumerGroup="g") == ["p", "old"]
    assert data(api, queue="r") == ["r"]
    assert data(api, queue="q", consumerGroup="g") == ["p", "old"]
    assert data(api, queue="q", partition="p", consumerGroup="g") == ["p"]
    assert data(api, partition="Default", consumerGroup="g") == ["old"]
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert data(api, consumerGroup="g", **{"from": hour_ago}) == ["p"]
    assert data(api, consumerGroup="g", to=hour_ago) == ["old"]
    assert data(api, queue="_") == data(api, queue="nobody") == data(api, partition="%") == []
    assert api.get("dlq", expect=400, **{"from": "x"})["error"].startswith("from is not a time")


def test_pages(api: Api):
    """Neither limit nor offset is ignored, whether or not a queue is given."""
    bury(api, "q", *range(3), group="g")
    for _ in range(3):
        api.ack(api.pop("q", "h", batch=1), "dlq", "h")
    queries: list[dict[str, Any]] = [{}, {"queue": "q"}]
    for query in queries:
        whole = api.get("dlq", **query)
        assert (len(whole["messages"]), whole["total"]) == (6, 6)
        numbers = [row["dlqId"] for row in whole["messages"]]
        assert numbers == sorted(numbers, reverse=True)
        pages = [api.get("dlq", limit=4, offset=offset, **query) for offset in (0, 4, 8)]
        assert [row for page in pages for row in page["messages"]] == whole["messages"]
        assert (pages[1]["total"], pages[1]["pagination"]) == (6, {"limit": 4, "offset": 4})
    assert "at most 10000" in api.get("dlq", offset=10_001, expect=400)["error"]


def test_dead_letters_outlive_their_queue(api: Api):
    bury(api, "q", 1)
    api.delete("resources/queues/q")
    assert data(api) == data(api, queue="q") == [1]


def test_a_list_goes_by_the_index(api: Api, db: psycopg.Connection):
    db.execute(FREEZE)
    db.execute("""
        INSERT INTO skep.dead_letters (group_name, queue, partition, partition_id, "offset", created_at, payload, error,
                                       attempts)
        SELECT 'g' || n % 3, 'q' || n % 50, 'p', 1, n, now(), '1', 'e', 1 FROM generate_series(1, 20000) n
    """)
    query = "SELECT count(*) FROM skep._match_dead_letters('q7', NULL, NULL, NULL, NULL, NULL, 10)"
    listing = "SELECT skep._queen_dead_letters('q7', NULL, NULL, NULL, NULL, NULL, 10, 0)"
    assert db.execute(query).fetchall() == [(10,)]
    plans = explained(db, lambda: db.execute(listing), analyze=True)
    read = sum(plan.rows_touched() for plan in plans)
    assert read < 1000, "all 400 of the queue for the total, and its page"


@pytest.mark.parametrize("by", ["id", "dlqId"])
def test_replay(api: Api, by: str):
    bury(api, "q", "m", group="g")
    (row,) = api.get("dlq")["messages"]
    answer = api.post(f"dlq/{row[by]}/replay")
    assert (answer["success"], answer["id"]) == (True, str(row[by]))
    (driven,) = answer["redriven"]
    assert driven.keys() == {"dlqId", "consumerGroup", "queue", "id"}
    assert (driven["dlqId"], driven["consumerGroup"], driven["queue"]) == (row["dlqId"], "g", "q")
    assert (api.take("q", "g"), api.take("q", "h", subscriptionMode="all")) == (["m"], ["m"])
    assert api.post(f"dlq/{row[by]}/replay", expect=404)["error"] == "Dead letter not found"


def test_replay_of_one_group(api: Api):
    bury(api, "q", "m", group="g")
    api.ack(api.pop("q", "h"), "dlq")
    (row, _) = api.get("dlq")["messages"]
    answer = api.post(f"dlq/{row['id']}/replay", {"consumerGroup": "g"})
    assert [letter["consumerGroup"] for letter in answer["redriven"]] == ["g"]
    assert [letter["consumerGroup"] for letter in api.get("dlq")["messages"]] == ["h"]


def test_replay_to_another_queue(api: Api, db: psycopg.Connection):
    bury(api, "q", "m", group="g")
    (row,) = api.get("dlq")["messages"]
    api.post(f"dlq/{row['dlqId']}/replay", {"queue": "other"})
    assert (api.take("q", "g"), api.take("other")) == ([], ["m"])
    assert db.execute("SELECT action, to_queue, done_by FROM skep.dead_letter_audit").fetchall() == [
        ("redriven", "other", "http")
    ]


@pytest.mark.parametrize("name", ["7", "99999999999999999999", "x", "00000000-0000-8001-8000-000000000000", "²"])
def test_replay_of_nothing(api: Api, name: str):
    assert api.post(f"dlq/{quote(name)}/replay", expect=404)["error"] == "Dead letter not found"


def test_replay_with_another_payload(api: Api):
    bury(api, "q", 1, 2, group="g")
    newest, oldest = (row["dlqId"] for row in api.get("dlq")["messages"])
    driven = api.call("POST", f"dlq/{oldest}/replay", b'{"payload": {"exact": 12345678901234567890.10}}')
    assert (driven.status, driven.json["redriven"][0]["dlqId"]) == (200, oldest)
    (message,) = api.pop("q", "g")
    assert message["headers"]["skep-redriven"]["edited"] is True
    assert message["data"] == {"exact": 12345678901234567890.10}
    api.ack([message])
    assert api.call("POST", f"dlq/{newest}/replay", b'{"payload": null}').status == 200
    assert api.take("q", "g") == [None]
    api.post(f"dlq/{newest}/replay", {"payload": 3}, expect=404)


@pytest.mark.parametrize("body", [b'{"payload": }', b'{"payload": "\\u0000"}', b'{"payload": NaN}'])
def test_a_payload_that_cannot_be(api: Api, body: bytes):
    bury(api, "q", 1)
    (row,) = api.get("dlq")["messages"]
    assert api.call("POST", f"dlq/{row['dlqId']}/replay", body).status == 400
    api.post(f"dlq/{row['id']}/replay", {"payload": 2}, expect=400)  # of every group that gave it up
    assert data(api) == [1]
