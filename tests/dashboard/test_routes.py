"""Routes of the dashboard: their numbers, and that they read messages by primary key or not at all."""

from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.dashboard import sample_data
from tests.dashboard.browsing import server
from tests.engine.plans import explained, scans
from tests.server.serving import Client, until

__all__ = ["server"]
PATH = "/api/v1/dashboard"


@pytest.fixture
def db(module_database_url: str) -> Generator[psycopg.Connection]:
    with psycopg.connect(module_database_url, autocommit=True) as connection:
        yield connection


def get(server: Client, path: str, **query: Any) -> Any:
    response = server.get(f"{PATH}/{path}", **query)
    assert response.status == 200, response.body
    return response.json


def test_overview(server: Client):
    now = get(server, "overview")
    assert (now["queues"], now["lag"], now["dead_letters"], now["leased"]) == (sample_data.EMPTY_QUEUES + 4, 380, 24, 1)
    assert now["groups"] == {"ACTIVE": 6, "PAUSED": 1, "DEAD": 1}
    assert [each["group"] for each in now["worst"]] == ["fraud", "shipping"]
    assert 30 < now["pushed"] < 90


def test_trends(server: Client):
    rows = get(server, "trend", points=30)
    assert 28 <= len(rows) <= 31
    assert rows[0][1:3] == [None, None]
    assert all(30 < row[1] < 90 and row[2] > row[1] for row in rows[1:])
    assert [rows[-1][3], rows[-1][5]] == [380, 24]
    assert rows == sorted(rows)
    of_queue = get(server, "queues/orders/trend", points=20)
    assert {row[0] for row in of_queue} == {"", "billing", "shipping", "search", "legacy-export"}
    (last,) = [row for row in get(server, "queues/orders/trend", group="shipping", points=20) if row[3] == 240][-1:]
    assert last[4] > 300


def test_queues_in_every_order(server: Client):
    for column in ("name", "kept", "pushed", "done", "lag", "seconds", "dead_letters", "groups"):
        up = [row[column] for row in get(server, "queues", sort=column, limit=1000)["queues"]]
        down = [row[column] for row in get(server, "queues", sort=column, descending="true", limit=1000)["queues"]]
        key = (lambda value: value.encode()) if column == "name" else None
        assert (up, down) == (sorted(up, key=key), sorted(down, key=key, reverse=True)), column
    found = get(server, "queues", search="TENANT.000", limit=3, offset=3)
    assert (found["total"], [row["name"] for row in found["queues"]]) == (
        9,
        ["tenant.0004", "tenant.0005", "tenant.0006"],
    )


def test_a_queue_newer_than_the_last_sample(server: Client):
    server.push("brand-new", 1)
    (row,) = get(server, "queues", search="brand-new")["queues"]
    assert (row["name"], row["partitions"], row["kept"]) == ("brand-new", 1, 0)
    assert server.call("DELETE", "/api/v1/resources/queues/brand-new").status == 200


def test_groups_in_every_order(server: Client):
    for column in ("group", "queue", "status", "rate", "lag", "seconds", "leased", "dead_letters"):
        values = [row[column] for row in get(server, "groups", sort=column, descending="true")["groups"]]
        assert values == sorted(values, reverse=True), column
    assert [row["group"] for row in get(server, "groups", status="DEAD")["groups"]] == ["legacy-export"]
    assert [row["group"] for row in get(server, "groups", search="SHIP")["groups"]] == ["shipping"]


def test_partitions_and_retention_holders(server: Client):
    of_queue = get(server, "queues/orders/partitions", limit=3)
    assert (of_queue["partitions"], of_queue["lag"], len(of_queue["rows"])) == (12, 240, 3)
    of_group = get(server, "queues/orders/partitions", group="search")
    assert (of_group["lag"], of_group["kept"]) == (0, 600)
    assert server.get(f"{PATH}/queues/missing/partitions").status == 404
    found = get(server, "queues/orders/holders")
    assert [(row["group"], row["floors"]) for row in found["groups"]] == [("shipping", 6), ("legacy-export", 0)]
    assert (found["archive"], found["kept_since"][:2]) == (None, "20")
    assert get(server, "queues/payments/holders")["archive"] == {"partitions": 1, "pending": 50}


def test_partitions_sorted_by_rate_and_age(server: Client):
    slow = get(server, "queues/orders/partitions", sort="oldest", limit=12)["rows"]
    ages = [row["seconds"] for row in slow if row["lag"]]
    assert ages == sorted(ages, reverse=True)
    assert 2000 < ages[0] < 2500
    assert {row["behind"] for row in slow if row["lag"]} == {"shipping"}
    assert {row["behind"] for row in slow if not row["lag"]} == {None}
    server.push("orders", *range(200), partition="customer-5")
    first, second, *_ = get(server, "queues/orders/partitions", sort="rate")["rows"]
    assert first["partition"] == "customer-5"
    assert first["rate"] > 10 * second["rate"]
    for sort in ("kept", "pushed"):
        values = [row[sort] for row in get(server, "queues/orders/partitions", sort=sort)["rows"]]
        assert values == sorted(values, reverse=True)


def test_a_group_without_backfill_holds_back_nothing_older(server: Client, db: psycopg.Connection):
    """The holders are the pending groups of retention, for every kind of subscription."""
    server.push("log", *range(10), partition="a")
    server.push("log", *range(5), partition="b")
    db.execute("SELECT skep.subscribe('late', 'log', mode => 'all', backfill => false)")
    db.execute("SELECT skep.subscribe('narrow', 'log', 'a')")
    db.execute("SELECT skep.subscribe('mixed', 'log', 'b', backfill => false), skep.subscribe('mixed', 'log')")
    server.push("log", 1, partition="a")
    holders = {row["group"]: row["pending"] for row in get(server, "queues/log/holders")["groups"]}
    pending = db.execute("SELECT group_name, sum(pending)::int FROM skep.pending_groups('log') GROUP BY 1").fetchall()
    assert holders == dict(pending) == {"late": 1, "narrow": 11, "mixed": 11}
    assert get(server, "queues/log/partitions", group="late")["lag"] == 16
    assert server.call("DELETE", "/api/v1/resources/queues/log").status == 200


def test_members_and_leases(server: Client):
    found = get(server, "queues/orders/members", group="shipping")
    assert found["members"] == []  # the group pops from the database directly
    (lease,) = found["out"]["leases"]
    assert (found["out"]["total"], found["out"]["again"]) == (1, 0)
    assert (lease["partitions"], lease["messages"], lease["unanswered"], lease["attempt"]) == (1, 5, 5, 1)
    (message,) = server.pop("payments", consumerGroup="watcher", batch=1)
    found = get(server, "queues/payments/members", group="watcher")
    (member,) = found["members"]
    assert (member["address"], member["subject"], member["waiting"], member["messages"]) == ("127.0.0.1", None, 0, 1)
    assert [each["lease"] for each in found["out"]["leases"]] == [message["leaseId"]]
    assert server.call("DELETE", "/api/v1/consumer-groups/watcher").status == 200


def test_pipelines(server: Client):
    found = get(server, "pipelines")
    assert (found["folder"], found["reports"], found["archive"]["busy"]) == (None, [], False)
    (queue,) = found["archive"]["queues"]
    assert (queue["queue"], queue["location"], queue["messages"]) == ("payments", "/backup/skep", 150)
    assert (queue["pending"], queue["waits"], queue["files"] >= 3, queue["bytes"] > 4096) == (50, True, True, True)
    runs = found["archive"]["runs"]
    assert [(run["messages"], run["unfinished"] > 0) for run in runs] == [(50, True), (50, False), (100, False)]


def test_max_age_allows_a_cached_response(server: Client):
    """A request with `max-age` may get a cached response. A request without it gets a new one."""
    cached = {"headers": {"Cache-Control": "max-age=30"}}
    path = "/api/v1/queues/emails"
    before = server.call("GET", path, **cached).json["messages"]
    server.push("emails", 1)
    assert server.call("GET", path, **cached).json["messages"] == before
    assert server.get(path).json["messages"] == before + 1
    until(lambda: server.call("GET", path, **cached).json["messages"] == before + 1)
    server.pop("emails", autoAck="true")


def test_a_seek_has_the_previewed_effect(server: Client):
    path = "/api/v1/consumer-groups/ledger/queues/payments/seek"
    half = (datetime.now(UTC) - timedelta(minutes=20)).isoformat()
    preview = server.get(path, timestamp=half).json
    assert (preview["again"], preview["skipped"], preview["lag"]) == (preview["lag_after"], 0, 0)
    assert 60 < preview["again"] < 140
    assert server.post(path, {"timestamp": half}).status == 200
    (now,) = server.get("/api/v1/groups", group="ledger", queue="payments").json
    assert now["lag"] == preview["lag_after"]
    back = server.get(path, toEnd="true").json
    assert (back["again"], back["skipped"]) == (0, preview["again"])
    assert server.post(path, {"toEnd": True}).status == 200
    assert server.get(path).status == 400


def test_dead_letters_by_page_and_error(server: Client):
    first = server.get("/api/v1/dead-letters", queue="orders", error="timeout", limit=10).json
    rest = server.get("/api/v1/dead-letters", queue="orders", error="timeout", before=first[-1]["id"]).json
    assert (len(first), len(rest)) == (10, 4)
    assert {each["error"] for each in first + rest} == {"TimeoutError: index did not answer within 5 s"}


def test_the_oldest_transaction(server: Client, module_database_url: str):
    with psycopg.connect(module_database_url, application_name="sleeper") as connection:
        connection.execute("SELECT 1")
        found = get(server, "database")
        assert found["oldest_transaction"]["application"] == "sleeper"
        assert found["oldest_transaction"]["state"] == "idle in transaction"
        assert {"sleeper", "skep"} <= {each["application"] for each in found["clients"]}
    assert found["bytes"] > 1_000_000
    assert [each["parked"] for each in get(server, "servers")] == [0]


CALLS: dict[str, str] = {
    "overview": "SELECT skep._dashboard_overview(NULL)",
    "trend": "SELECT skep._dashboard_trend('1 hour', 60, NULL)",
    "queue_trend": "SELECT skep._dashboard_queue_trend('orders', NULL, '1 hour', 60)",
    "queues": "SELECT skep._dashboard_queues(NULL, 'lag', true, 50, 0, NULL)",
    "groups": "SELECT skep._dashboard_groups(NULL, NULL, 'lag', true, 50, 0, NULL)",
    "partitions": "SELECT skep._dashboard_partitions('orders', NULL, 'lag', 20)",
    "group_partitions": "SELECT skep._dashboard_partitions('orders', 'shipping', 'lag', 20)",
    "holders": "SELECT skep._dashboard_holders('orders')",
    "leases": "SELECT skep._dashboard_leases('orders', 'shipping', 20)",
    "pipelines": "SELECT skep._dashboard_pipelines(NULL)",
    "messages": "SELECT skep._queen_messages('orders', NULL, NULL, NULL, NULL, '1970-01-01', now(), NULL, 50, 0)",
    "by_offset": "SELECT skep.message_status('orders', 'customer-2', 10, 50)",
    "seek": "SELECT skep._dashboard_seek('shipping', 'orders', now()::text)",
}


@pytest.mark.parametrize("name", CALLS)
def test_messages_are_read_by_primary_key_or_not_at_all(server: Client, db: psycopg.Connection, name: str):
    call: Callable[[], object] = lambda: db.execute(CALLS[name].encode())  # noqa: E731
    read = {index for plan in explained(db, call) for table, index in scans([plan]) if table == "messages"}
    assert read <= {"messages_pkey"}
    assert name not in ("trend", "queue_trend", "queues", "groups") or not read
