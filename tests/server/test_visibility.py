"""Who may not see every queue sees those he may, in every list, and is refused the others by name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jwt
import psycopg
import pytest

from tests.server.api import Api, running

pytest_plugins = ["tests.server.fixtures"]

SECRET = "s" * 32


def as_caller(api: Api, **claims: Any) -> Api:
    token = jwt.encode({"sub": "somebody"} | claims, SECRET, algorithm="HS256")
    return Api(replace(api.client, headers=(("Authorization", f"Bearer {token}"),)))


@pytest.fixture(scope="module")
def guarded(module_database_url: str):
    with running(module_database_url, auth=True, jwt_secret=SECRET) as api:
        yield api


@pytest.fixture
def boss(guarded: Api, db: psycopg.Connection) -> Api:
    return as_caller(guarded, role="admin")


@pytest.fixture
def guest(guarded: Api) -> Api:
    """One who may read the queues that begin with `mine`, and nothing else."""
    return as_caller(guarded, grants={"mine*": ["read"]})


@pytest.fixture
def stored(boss: Api, db: psycopg.Connection) -> dict[str, Any]:
    """Two queues with the same history: a message in each, consumed by two groups, dead in one, with a trace."""
    found: dict[str, Any] = {}
    for queue in ("mine.mine", "other.other"):
        (found[queue],) = boss.push(queue, queue, ids=[queue])
        place = {"transactionId": queue, "partitionId": found[queue]["partition_id"], "data": queue}
        boss.post("traces", place | {"traceNames": ["both", f"only {queue}"]}, expect=201)
        boss.ack(boss.pop(queue, "g"), "dlq", queue)
        db.execute("SELECT skep.sample('0')")
    boss.push("mine.mine", 2)
    boss.push("other.other", 2)
    db.execute("SELECT skep.sample('0')")
    return found


LISTS = [
    "messages", "messages?status=dead_letter", "dlq", "dlq?consumerGroup=g", "consumer-groups",
    "consumer-groups/lagging?minLagSeconds=0", "consumer-groups/g", "resources/queues", "resources/partitions",
    "resources/namespaces", "resources/tasks", "resources/overview", "status", "status/queues",
    "analytics/worker-metrics", "analytics/queue-lag", "analytics/queue-ops", "traces/names", "traces/by-name/both",
]  # fmt: skip


@pytest.mark.parametrize("path", LISTS)
def test_a_list_shows_what_the_caller_may_see(boss: Api, guest: Api, stored: dict[str, Any], path: str):
    assert "other" in str(boss.get(path)) or path == "resources/overview"
    seen = str(guest.get(path))
    assert "other" not in seen
    assert "mine" in seen or path == "resources/overview"


def test_sums_are_of_what_the_caller_may_see(boss: Api, guest: Api, stored: dict[str, Any]):
    assert (boss.get("resources/overview")["messages"]["total"], boss.get("dlq")["total"]) == (4, 2)
    assert (guest.get("resources/overview")["messages"]["total"], guest.get("dlq")["total"]) == (2, 1)
    assert guest.get("status")["deadLetterQueue"]["totalMessages"] == 1
    assert guest.get("traces/by-name/both")["total"] == 1
    assert guest.get("dlq", limit=1)["messages"][0]["queue"] == "mine.mine", "a page is full of what he may see"


def test_dead_letters_of_queues_that_are_gone(boss: Api, guest: Api, stored: dict[str, Any]):
    for queue in stored:
        boss.delete(f"resources/queues/{queue}")
    assert [row["queue"] for row in guest.get("dlq")["messages"]] == ["mine.mine"]


@pytest.mark.parametrize("path", ["messages", "dlq", "resources/partitions", "status", "status/analytics",
                                  "analytics/queue-lag", "analytics/queue-ops"])  # fmt: skip
def test_a_queue_that_is_named_must_be_allowed(guest: Api, stored: dict[str, Any], path: str):
    assert guest.get(path, queue="other.other", expect=403)["error"] == "Insufficient permissions"
    guest.get(path, queue="mine.mine")


@pytest.mark.parametrize("path", ["resources/queues/{}", "resources/queues/{}/depth", "status/queues/{}",
                                  "status/queues/{}/messages"])  # fmt: skip
def test_a_queue_in_the_path_must_be_allowed(guest: Api, stored: dict[str, Any], path: str):
    guest.get(path.format("other.other"), expect=403)
    guest.get(path.format("mine.mine"))


def test_a_partition_must_be_of_a_queue_that_is_allowed(guest: Api, stored: dict[str, Any]):
    for queue, status in (("mine.mine", 200), ("other.other", 403)):
        lane = stored[queue]["partition_id"]
        for path in (f"messages/{lane}/{queue}", f"traces/{lane}/{queue}"):
            guest.get(path, expect=status)
        guest.post("fetch", {"entries": [{"queue": queue, "partition": "Default", "offset": 0}]}, expect=status)
        guest.post("partitions/changed", {"entries": [{"queue": queue}]}, expect=status)


def test_who_reads_changes_nothing(guest: Api, stored: dict[str, Any]):
    lane = stored["mine.mine"]["partition_id"]
    for method, path in [
        ("DELETE", f"messages/{lane}/mine.mine"),
        ("POST", f"messages/{lane}/mine.mine/retry"),
        ("POST", f"messages/{lane}/mine.mine/dlq"),
        ("POST", "dlq/1/replay"),
        ("POST", "traces"),
        ("DELETE", "consumer-groups/g"),
        ("DELETE", "consumer-groups/g/queues/mine.mine"),
        ("POST", "consumer-groups/g/subscription"),
        ("POST", "consumer-groups/g/queues/mine.mine/seek"),
        ("POST", "consumer-groups/g/queues/mine.mine/partitions/Default/seek"),
        ("POST", "stats/refresh"),
        ("DELETE", "queues/mine.mine/clear"),
        ("GET", "analytics/postgres-stats"),
    ]:
        assert guest.call(method, path, {} if method == "POST" else None).status == 403, path


def test_who_may_redrive_does_so_in_his_queues(guarded: Api, boss: Api, stored: dict[str, Any]):
    helper = as_caller(guarded, grants={"mine*": ["redrive"], "to": ["push"]})
    letters = {row["queue"]: row["dlqId"] for row in boss.get("dlq")["messages"]}
    helper.post(f"dlq/{letters['other.other']}/replay", expect=403)
    helper.post(f"messages/{stored['other.other']['partition_id']}/other.other/retry", expect=403)
    helper.post(f"messages/{stored['other.other']['partition_id']}/other.other/dlq", expect=403)
    helper.post(f"dlq/{letters['mine.mine']}/replay", {"queue": "to"}, expect=403)  # where he might read it
    helper.post(f"dlq/{letters['mine.mine']}/replay", {"queue": "elsewhere"}, expect=403)
    helper.post("dead-letters/redrive", {"queue": "mine.mine", "to_queue": "to"}, expect=403)
    helper.post(f"dlq/{letters['mine.mine']}/replay", {"payload": "as good as a push"}, expect=403)
    helper.post(f"dlq/{letters['mine.mine']}/replay")
    assert [row["queue"] for row in boss.get("dlq")["messages"]] == ["other.other"]


def test_nobody_gets_in(guarded: Api, stored: dict[str, Any], serve: Callable[..., Api]):
    for path in LISTS:
        assert guarded.call("GET", path).status == 401
    pusher = as_caller(guarded, role="write-only")
    for path in LISTS:
        assert pusher.call("GET", path).status == 403
