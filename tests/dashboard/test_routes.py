"""What the dashboard asks the server: right numbers, by index, and no message is read for a list."""

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.dashboard import story
from tests.dashboard.browsing import shop
from tests.engine.plans import explained, scans
from tests.server.serving import Client

__all__ = ["shop"]
PATH = "/api/v1/dashboard"


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


def ask(shop: Client, path: str, **query: Any) -> Any:
    answer = shop.get(f"{PATH}/{path}", **query)
    assert answer.status == 200, answer.body
    return answer.json


def test_overview(shop: Client):
    now = ask(shop, "overview")
    assert (now["queues"], now["lag"], now["dead_letters"], now["leased"]) == (story.MANY + 4, 380, 24, 1)
    assert now["groups"] == {"ACTIVE": 6, "PAUSED": 1, "DEAD": 1}
    assert [each["group"] for each in now["worst"]] == ["fraud", "shipping"]
    assert 30 < now["pushed"] < 90


def test_trends(shop: Client):
    rows = ask(shop, "trend", points=30)
    assert 28 <= len(rows) <= 31
    assert rows[0][1:3] == [None, None]
    assert all(30 < row[1] < 90 and row[2] > row[1] for row in rows[1:])
    assert [rows[-1][3], rows[-1][5]] == [380, 24]
    assert rows == sorted(rows)
    of_queue = ask(shop, "queues/orders/trend", points=20)
    assert {row[0] for row in of_queue} == {"", "billing", "shipping", "search", "legacy-export"}
    (last,) = [row for row in ask(shop, "queues/orders/trend", group="shipping", points=20) if row[3] == 240][-1:]
    assert last[4] > 300


def test_queues_in_every_order(shop: Client):
    for column in ("name", "kept", "pushed", "done", "lag", "seconds", "dead_letters", "groups"):
        up = [row[column] for row in ask(shop, "queues", sort=column, limit=1000)["queues"]]
        down = [row[column] for row in ask(shop, "queues", sort=column, descending="true", limit=1000)["queues"]]
        key = (lambda value: value.encode()) if column == "name" else None
        assert (up, down) == (sorted(up, key=key), sorted(down, key=key, reverse=True)), column
    found = ask(shop, "queues", search="TENANT.000", limit=3, offset=3)
    assert (found["total"], [row["name"] for row in found["queues"]]) == (
        9,
        ["tenant.0004", "tenant.0005", "tenant.0006"],
    )


def test_a_queue_younger_than_the_sample(shop: Client):
    shop.push("brand-new", 1)
    (row,) = ask(shop, "queues", search="brand-new")["queues"]
    assert (row["name"], row["partitions"], row["kept"]) == ("brand-new", 1, 0)
    assert shop.call("DELETE", "/api/v1/resources/queues/brand-new").status == 200


def test_groups_in_every_order(shop: Client):
    for column in ("group", "queue", "status", "rate", "lag", "seconds", "leased", "dead_letters"):
        values = [row[column] for row in ask(shop, "groups", sort=column, descending="true")["groups"]]
        assert values == sorted(values, reverse=True), column
    assert [row["group"] for row in ask(shop, "groups", status="DEAD")["groups"]] == ["legacy-export"]
    assert [row["group"] for row in ask(shop, "groups", search="SHIP")["groups"]] == ["shipping"]


def test_lanes_and_who_holds_them(shop: Client):
    of_queue = ask(shop, "queues/orders/lanes", limit=3)
    assert (of_queue["partitions"], of_queue["lag"], len(of_queue["lanes"])) == (12, 240, 3)
    of_group = ask(shop, "queues/orders/lanes", group="search")
    assert (of_group["lag"], of_group["kept"]) == (0, 600)
    assert shop.get(f"{PATH}/queues/nobody/lanes").status == 404
    assert [(row["group"], row["floors"]) for row in ask(shop, "queues/orders/holders")] == [
        ("shipping", 6),
        ("legacy-export", 0),
    ]


def test_the_preview_of_a_seek_is_what_happens(shop: Client):
    path = "/api/v1/consumer-groups/ledger/queues/payments/seek"
    half = (datetime.now(UTC) - timedelta(minutes=20)).isoformat()
    preview = shop.get(path, timestamp=half).json
    assert (preview["again"], preview["skipped"], preview["lag"]) == (preview["lag_after"], 0, 0)
    assert 60 < preview["again"] < 140
    assert shop.post(path, {"timestamp": half}).status == 200
    (now,) = shop.get("/api/v1/groups", group="ledger", queue="payments").json
    assert now["lag"] == preview["lag_after"]
    back = shop.get(path, toEnd="true").json
    assert (back["again"], back["skipped"]) == (0, preview["again"])
    assert shop.post(path, {"toEnd": True}).status == 200
    assert shop.get(path).status == 400


def test_dead_letters_by_page_and_error(shop: Client):
    first = shop.get("/api/v1/dead-letters", queue="orders", error="timeout", limit=10).json
    rest = shop.get("/api/v1/dead-letters", queue="orders", error="timeout", before=first[-1]["id"]).json
    assert (len(first), len(rest)) == (10, 4)
    assert {each["error"] for each in first + rest} == {"TimeoutError: index did not answer within 5 s"}


def test_the_oldest_transaction(shop: Client, module_database_url: str):
    with psycopg.connect(module_database_url, application_name="sleeper") as open_one:
        open_one.execute("SELECT 1")
        found = ask(shop, "database")
        assert found["oldest_transaction"]["application"] == "sleeper"
        assert found["oldest_transaction"]["state"] == "idle in transaction"
        assert {"sleeper", "skep"} <= {each["application"] for each in found["clients"]}
    assert found["bytes"] > 1_000_000
    assert [each["parked"] for each in ask(shop, "servers")] == [0]


CALLS: dict[str, str] = {
    "overview": "SELECT skep.dash_overview(NULL)",
    "trend": "SELECT skep.dash_trend('1 hour', 60, NULL)",
    "queue_trend": "SELECT skep.dash_queue_trend('orders', NULL, '1 hour', 60)",
    "queues": "SELECT skep.dash_queues(NULL, 'lag', true, 50, 0, NULL)",
    "groups": "SELECT skep.dash_groups(NULL, NULL, 'lag', true, 50, 0, NULL)",
    "lanes": "SELECT skep.dash_lanes('orders', NULL, 'lag', 20)",
    "group_lanes": "SELECT skep.dash_lanes('orders', 'shipping', 'lag', 20)",
    "holders": "SELECT skep.dash_holders('orders')",
    "seek": "SELECT skep.dash_seek('shipping', 'orders', now()::text)",
}


@pytest.mark.parametrize("name", CALLS)
def test_messages_are_read_by_their_key_or_not_at_all(shop: Client, db: psycopg.Connection, name: str):
    call: Callable[[], object] = lambda: db.execute(CALLS[name].encode())  # noqa: E731
    read = {index for plan in explained(db, call) for table, index in scans([plan]) if table == "messages"}
    assert read <= {"messages_pkey"}
    assert name not in ("trend", "queue_trend", "queues", "groups") or not read
